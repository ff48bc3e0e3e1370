#include <fmt/format.h>

#include <algorithm>

#include "bench/hindcast/hindcast.h"

namespace orthant::hindcast {
namespace {

std::string cell(const std::optional<double>& part) {
  return part ? fmt::format("{:.1f}", 100 * *part) : "-";
}

std::string table_of(const std::string& title, const std::vector<ErrorLine>& lines) {
  if (lines.empty()) {
    return "";
  }
  std::size_t width = title.size();
  for (const ErrorLine& line : lines) {
    width = std::max(width, line.name.size());
  }
  std::string text = fmt::format("{:<{}}  {:>5}  {:>7}  {:>6}  {:>6}  {:>8}  {:>6}  {:>9}\n", title, width, "rows",
                                 "median", "mean", "p90", "largest", "bias", "coverage");
  for (const ErrorLine& line : lines) {
    text += fmt::format("{:<{}}  {:>5}  {:>7}  {:>6}  {:>6}  {:>8}  {:>+6.1f}  {:>9}\n", line.name, width, line.rows,
                        cell(line.median), cell(line.mean), cell(line.p90), cell(line.largest), 100 * line.bias,
                        cell(line.coverage));
  }
  return text + "\n";
}

// Layouts that were chosen well need no line each.
std::string sweeps_text(const Hindcast& result, bool computed) {
  constexpr double worth_a_line = 0.01;
  std::size_t sweeps = 0, exact = 0;
  std::string worse;
  for (const SweepLine& sweep : result.sweeps) {
    if (sweep.computed == computed) {
      sweeps += 1;
      exact += sweep.regret <= 0 ? 1 : 0;
      worse += sweep.regret <= worth_a_line || computed
                   ? ""
                   : fmt::format("  +{:.1f} %  {}: chose {}; best {}\n", 100 * sweep.regret, sweep.name, sweep.chosen,
                                 sweep.best);
    }
  }
  return sweeps == 0 ? ""
                     : fmt::format("layout regret{}: {:.2f} % mean over {} sweeps; the best layout in {}\n{}",
                                   computed ? ", rows most likely computed" : "", 100 * result.mean_regret(computed),
                                   sweeps, exact, worse);
}

std::string memory_text(const OutOfMemory& memory) {
  if (memory.rows == 0) {
    return "";
  }
  const std::size_t told = memory.right + memory.missed, predicted = memory.right + memory.false_alarms;
  std::string text =
      fmt::format("does not fit: {} rows tell recomputation and micro-batch, {} of them do not fit", memory.rows, told);
  text += told == 0 ? "; nothing to recall"
                    : fmt::format("; recall {:.2f}", static_cast<double>(memory.right) / static_cast<double>(told));
  text += predicted == 0
              ? ", no false alarm\n\n"
              : fmt::format(", precision {:.2f}, {} false alarms\n\n",
                            static_cast<double>(memory.right) / static_cast<double>(predicted), memory.false_alarms);
  return text;
}

}  // namespace

std::string text_of(const Hindcast& result) {
  std::string text = "errors in per cent; coverage: of the 90 % interval\n\n";
  text += table_of("step time", result.sources);
  text += table_of("held out", result.held);
  text += table_of("goals", result.summary);
  text += table_of("peak memory", result.memory);
  text += sweeps_text(result, false) + sweeps_text(result, true) + (result.sweeps.empty() ? "" : "\n");
  text += memory_text(result.out_of_memory);
  std::vector<std::pair<std::string, int>> reasons;
  for (const NotScored& row : result.not_scored) {
    const std::string reason = row.source + ": " + row.why;
    const auto same =
        std::find_if(reasons.begin(), reasons.end(), [&](const auto& one) { return one.first == reason; });
    if (same == reasons.end()) {
      reasons.emplace_back(reason, 1);
    } else {
      ++same->second;
    }
  }
  for (const auto& [reason, count] : reasons) {
    text += fmt::format("not scored: {} row{} of {}\n", count, count == 1 ? "" : "s", reason);
  }
  return text;
}

std::string fit_file(const Hindcast& result, const cost::FactorFile& before) {
  cost::FactorFile factors = result.factors;
  for (const auto& [name, unused] : before.generations) {
    factors.generations.try_emplace(name);
  }
  std::size_t rows = 0;
  for (const Prediction& prediction : result.predictions) {
    rows += prediction.row.fitted && prediction.row.seconds ? 1 : 0;
  }
  return cost::factors_toml(factors, fmt::format("# Written by: orthant bench hindcast --fit\n"
                                                 "# A fit to {} rows of bench/hindcast/data, all but "
                                                 "vtrain_single.csv. Generations that no row ran on (v100, mi250x)\n"
                                                 "# have the values that a fit starts from.\n",
                                                 rows));
}

}  // namespace orthant::hindcast
