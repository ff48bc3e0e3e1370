#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/search/reasons.h"
#include "apps/search/search_output.h"
#include "core/base/bytes_text.h"

namespace orthant::search {
namespace {

std::string bytes_or_dash(double count) {
  return count < 0.5 ? "-" : bytes_text(static_cast<std::int64_t>(count));
}

std::string time_text(double seconds) {
  return seconds >= 10  ? fmt::format("{:.1f} s", seconds)
         : seconds >= 1 ? fmt::format("{:.2f} s", seconds)
                        : fmt::format("{:.3g} ms", 1e3 * seconds);
}

double tokens_a_second(const Problem& problem, double seconds) {
  return problem.base.global_batch * problem.model.sequence / seconds;
}

// Names and values in one line; parts below half a per cent of the sum are left out.
template <class Text>
std::string parts_text(const std::vector<std::pair<std::string, double>>& parts, Text text) {
  double sum = 0;
  for (const auto& part : parts) {
    sum += part.second;
  }
  std::string line;
  for (const auto& [name, value] : parts) {
    if (value > 0.005 * sum) {
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, text(value));
    }
  }
  return line;
}

std::string counts_text(const Answer& answer) {
  const Counts& c = answer.counts;
  std::string text = fmt::format("{} layouts are legal\n", c.legal);
  text += fmt::format("  {:>12} do not fit ({} by the bytes that they need at least, {} counted)\n",
                      c.too_large_by_bound + c.too_large, c.too_large_by_bound, c.too_large);
  text += fmt::format(
      "  {:>12} are slower than all that is asked for ({} by their work alone, {} with what comes "
      "before and after it)\n",
      c.slower_by_work + c.slower_by_bound, c.slower_by_work, c.slower_by_bound);
  return text + fmt::format("  {:>12} were timed\n", c.timed);
}

std::string best_text(const Shown& shown) {
  std::string text;
  const std::vector<Timed>& best = shown.answer.best;
  for (std::size_t i = 0; i < best.size(); ++i) {
    const Timed& one = best[i];
    text += fmt::format("\n{}. {}  {:.3g} tokens/s  {}\n", i + 1, time_text(one.time.seconds),
                        tokens_a_second(shown.problem, one.time.seconds), text_of(one.candidate));
    text += "   time: " + parts_text(parts_of(one.time), time_text) + "\n";
    text += fmt::format("   memory: {} on the largest rank: {}\n", bytes_or_dash(one.memory.total()),
                        parts_text(kinds_of(one.memory), bytes_or_dash));
    if (one.memory.host > 0) {
      text += fmt::format("   in the host's memory: {}\n", bytes_or_dash(one.memory.host));
    }
  }
  return text;
}

std::string rejected_text(const Shown& shown) {
  std::string text = "\nwhy not another (the best layout that has it)\n";
  for (const Rejected& one : rejected(shown.problem, shown.answer)) {
    const std::string by = one.fits ? fmt::format("{:+.1f} %", 100 * one.slower) : "-";
    text += fmt::format("  {:<38} {:>10}  {}\n", text_of(one.of), by, one.why);
  }
  for (const auto& [of, why] : shown.answer.refused) {
    text += fmt::format("  {:<38} {:>10}  {}\n", text_of(of), "-", why);
  }
  for (const auto& [feature, why] : shown.problem.refuses) {
    text += fmt::format("  {:<38} {:>10}  {}\n", name_of(feature), "-", why);
  }
  return text;
}

std::string skew_text(const Shown& shown) {
  if (shown.skew.empty()) {
    return "";
  }
  std::string text =
      fmt::format("\nthe first layout by the recorded routing ({} logged steps, each for a micro-batch)\n",
                  shown.problem.loads.size());
  text += fmt::format("  {:<30} {:>10} {:>10} {:>13} {:>9}\n", "", "p50", "p99", "busiest rank", "dropped");
  for (const SkewAnswer& one : shown.skew) {
    text += fmt::format("  {:<30} {:>10} {:>10} {:>13.2f} {:>7.1f} %{}\n", one.question, time_text(one.seconds.p50),
                        time_text(one.seconds.p99), one.busiest, 100 * one.dropped, one.fits ? "" : "  does not fit");
  }
  return text;
}

std::string frontier_text(const Shown& shown) {
  std::string text = "\nthe fastest within less memory\n";
  for (const Timed& one : shown.answer.frontier) {
    text += fmt::format("  {:>10}  {:>9}  {}\n", bytes_or_dash(one.memory.total()), time_text(one.time.seconds),
                        text_of(one.candidate));
  }
  return text;
}

}  // namespace

std::string answer_text(const Shown& shown) {
  const Problem& problem = shown.problem;
  std::string text = fmt::format("{} on {} ranks of {}, {} of memory each\n", shown.configuration, problem.base.ranks,
                                 problem.machine.name, bytes_or_dash(problem.memory));
  text += counts_text(shown.answer);
  if (shown.answer.best.empty()) {
    return text + "\n" + why_nothing_fits(problem, shown.answer);
  }
  text += best_text(shown) + skew_text(shown) + rejected_text(shown) + frontier_text(shown);
  text += fmt::format(
      "\nPredicted: 90 % of published runs are within a factor of {:.2f} of such a time "
      "(bench/results/hindcast.md).\n",
      std::exp(1.645 * shown.spread));
  for (const std::string& note : shown.notes) {
    text += note + "\n";
  }
  return text + fmt::format("{:.1f} s\n", shown.seconds);
}

std::vector<std::string> heading_of(const Shown& shown, const Timed& layout) {
  return {fmt::format("Found by orthant plan --search {} --machine {}, for {} ranks:", shown.configuration,
                      shown.machine, shown.problem.base.ranks),
          text_of(layout.candidate),
          fmt::format("Predicted: {} a step, {} on the largest rank. Not one run stands behind it.",
                      time_text(layout.time.seconds), bytes_or_dash(layout.memory.total()))};
}

}  // namespace orthant::search
