#include "apps/search/reasons.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/search/timing.h"
#include "core/base/bytes_text.h"

namespace orthant::search {
namespace {

std::string bytes(double count) {
  return bytes_text(static_cast<std::int64_t>(count));
}

std::string seconds(double value) {
  return value >= 1 ? fmt::format("{:.2f} s", value) : fmt::format("{:.3g} ms", 1e3 * value);
}

bool leaves_node(const Problem& problem, const Candidate& candidate, std::size_t group, int size) {
  return size > 1 && places_of(problem, candidate)[group] < size;
}

// What the slower layout's groups have to do with it.
std::string cause(const Problem& problem, const std::string& part, const Candidate& slower, const Candidate& best) {
  const int gradients = slower.data * slower.sequence;
  if (part == "tensor exchange" || part == "sequence exchange") {
    const bool out = leaves_node(problem, slower, 0, slower.tensor) || leaves_node(problem, slower, 1, slower.sequence);
    const bool was = leaves_node(problem, best, 0, best.tensor) || leaves_node(problem, best, 1, best.sequence);
    return out && !was ? "leaves the node: " : "";
  }
  if (part == "expert exchange") {
    return leaves_node(problem, slower, 4, slower.expert) && !leaves_node(problem, best, 4, best.expert)
               ? "leaves the node: "
               : "";
  }
  if (part == "gradients") {
    return leaves_node(problem, slower, 2, gradients) && !leaves_node(problem, best, 2, best.data * best.sequence)
               ? "leaves the node: "
               : "";
  }
  if (part == "waiting") {
    const auto count = [&](const Candidate& c) {
      return static_cast<double>(problem.batches.back()) / c.data / static_cast<double>(c.micro_batch);
    };
    return fmt::format("{} stages and {:g} micro-batches: ", slower.pipeline, count(slower));
  }
  return "";
}

}  // namespace

std::vector<std::pair<std::string, double>> parts_of(const cost::StepTime& time) {
  return {{"products", time.work.products},
          {"attention", time.work.attention},
          {"memory traffic", time.work.memory},
          {"tensor exchange", time.work.tensor},
          {"expert exchange", time.work.expert},
          {"launches", time.work.launch},
          {"waiting", time.waiting},
          {"messages", time.messages},
          {"gathered weights", time.gather},
          {"uneven routing", time.uneven},
          {"gradients", time.gradients},
          {"update", time.update},
          {"shared cores", time.shared},
          {"host", time.host}};
}

std::vector<std::pair<std::string, double>> kinds_of(const cost::StageMemory& memory) {
  return {{"weights", memory.weights},         {"gradients", memory.gradients}, {"states", memory.states},
          {"activations", memory.activations}, {"logits", memory.logits},       {"other", memory.workspace}};
}

std::string why_slower(const Problem& problem, const Timed& slower, const Timed& best) {
  const auto now = parts_of(slower.time), then = parts_of(best.time);
  std::size_t most = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i].second - then[i].second > now[most].second - then[most].second) {
      most = i;
    }
  }
  const double more = now[most].second - then[most].second;
  if (more <= 0) {
    return "as fast";
  }
  const std::string part =
      now[most].first == "tensor exchange" && slower.candidate.tensor == 1 ? "sequence exchange" : now[most].first;
  return fmt::format("{}{} +{}", cause(problem, now[most].first, slower.candidate, best.candidate), part,
                     seconds(more));
}

std::vector<Rejected> rejected(const Problem& problem, const Answer& answer) {
  std::vector<Rejected> all;
  if (answer.best.empty()) {
    return all;
  }
  const Timed& best = answer.best.front();
  const std::vector<Class> own = classes_of(best.candidate);
  for (const auto& [of, found] : answer.classes) {
    if (std::find(own.begin(), own.end(), of) != own.end()) {
      continue;
    }
    Rejected one{of, 0, found.fits, ""};
    if (found.fits) {
      one.slower = found.best.time.seconds / best.time.seconds - 1;
      one.why = why_slower(problem, found.best, best);
    } else if (found.least > problem.memory) {
      one.why = fmt::format("does not fit: it needs {} at least", bytes(found.least));
    } else {
      one.why = "does not fit in any layout";
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::string why_nothing_fits(const Problem& problem, const Answer& answer) {
  Candidate smallest = answer.smallest;
  smallest.zero = problem.has(Feature::zero) && smallest.data * smallest.sequence > 1 ? 3 : 0;
  smallest.host_states = problem.has(Feature::host_states);
  const cost::StageMemory memory = memory_of(problem, layout_of(problem, smallest));
  std::string text =
      fmt::format("none of {} layouts of {} ranks fits: a rank may have {}, and each needs {} at least\n",
                  answer.counts.legal, problem.base.ranks, bytes(problem.memory), bytes(answer.smallest_bytes));
  text += fmt::format("the least: {}\n  its largest stage needs {}:", text_of(smallest), bytes(memory.total()));
  std::pair<std::string, double> most;
  for (const auto& kind : kinds_of(memory)) {
    text += kind.second > 0 ? fmt::format(" {} {},", kind.first, bytes(kind.second)) : "";
    most = kind.second > most.second ? kind : most;
  }
  text.pop_back();
  return text + fmt::format("\nwhat binds: {}\n", most.first);
}

}  // namespace orthant::search
