#include "core/trace/late_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace orthant {
namespace {

constexpr double least_share = 0.02;  // of a step, to be worth a word

double mean_of_others(const TraceSummary& summary, int rank, const std::function<double(const RankSummary&)>& value) {
  double sum = 0;
  for (const RankSummary& other : summary.ranks) {
    sum += other.rank == rank ? 0 : value(other);
  }
  return sum / static_cast<double>(std::max<std::size_t>(1, summary.ranks.size() - 1));
}

double part(const std::map<std::string, double>& parts, const std::string& name) {
  const auto found = parts.find(name);
  return found == parts.end() ? 0 : found->second;
}

// The largest excess over the others' mean among `parts`.
struct Excess {
  std::string name;
  double seconds = 0, own = 0, others = 0;
};

Excess largest(const TraceSummary& summary, const RankSummary& late,
               std::map<std::string, double> RankSummary::*parts) {
  Excess most;
  for (const auto& [name, own] : late.*parts) {
    const double others =
        mean_of_others(summary, late.rank, [&, &key = name](const RankSummary& r) { return part(r.*parts, key); });
    if (own - others > most.seconds) {
      most = {name, own - others, own, others};
    }
  }
  return most;
}

double expert_seconds(const RankSummary& rank) {
  double sum = 0;
  for (const auto& [name, seconds] : rank.operations) {
    sum += is_expert_product(name) ? seconds : 0;
  }
  return sum;
}

std::string reason(const TraceSummary& summary, const RankSummary& late) {
  const double rows = mean_of_others(summary, late.rank, [](const RankSummary& r) { return r.expert_rows; });
  const double experts = expert_seconds(late) - mean_of_others(summary, late.rank, expert_seconds);
  const Excess operation = largest(summary, late, &RankSummary::operations);
  const Excess other = largest(summary, late, &RankSummary::others);
  const Excess moving = largest(summary, late, &RankSummary::collectives);
  const double excess = std::max({operation.seconds, other.seconds, moving.seconds});
  if (rows > 0 && late.expert_rows > 1.05 * rows && experts > 0 && experts >= 0.5 * excess) {
    return fmt::format(
        "its experts compute {:.0f} rows a step, those of the others {:.0f}: routing is out of balance (moe.aux_loss, "
        "moe.router = \"bias\", or other experts per rank)",
        late.expert_rows, rows);
  }
  if (excess <= 0) {
    return "nothing that it does takes longer than on the others by itself";
  }
  if (other.seconds == excess) {
    return fmt::format("outside operations: '{}' takes {:.2f} ms a step on it, {:.2f} on the others", other.name,
                       1e3 * other.own, 1e3 * other.others);
  }
  const Excess& slow = operation.seconds == excess ? operation : moving;
  return fmt::format(
      "'{}' takes {:.2f} ms a step on it, {:.2f} on the others: its processor is slower, shared or has "
      "more to do",
      slow.name, 1e3 * slow.own, 1e3 * slow.others);
}

}  // namespace

bool is_expert_product(std::string_view operation) {
  return operation.starts_with("grouped_gemm") || operation.starts_with("expert_ffn");
}

void find_late_rank(TraceSummary& summary) {
  const double others = static_cast<double>(summary.ranks.size()) - 1;
  std::map<int, double> waits;
  std::map<int, double> bubbles;
  for (const RankSummary& rank : summary.ranks) {
    for (const auto& [late, seconds] : rank.waiting_for) {
      waits[late] += seconds / others;
    }
    for (const auto& [late, seconds] : rank.bubble_for) {
      bubbles[late] += seconds / others;
    }
  }
  const auto by_wait = [](const auto& a, const auto& b) { return a.second < b.second; };
  if (!bubbles.empty()) {
    // Stages wait for each other in any pipeline; one rank that they wait for far more than for all others is late.
    const auto most = std::max_element(bubbles.begin(), bubbles.end(), by_wait);
    double rest = 0;
    for (const auto& [rank, seconds] : bubbles) {
      rest += rank == most->first ? 0 : seconds;
    }
    waits[most->first] += std::max(0.0, most->second - 2 * rest);
  }
  const auto most = std::max_element(waits.begin(), waits.end(), by_wait);
  const double step = summary.ranks.empty() ? 0 : summary.ranks.front().seconds;
  if (most == waits.end() || most->second < least_share * step) {
    summary.late_rank.reset();
    summary.why = summary.ranks.size() < 2
                      ? "one rank waits for nobody"
                      : "no rank is late: the others wait for none of them as much as 2 % of a step";
    return;
  }
  const auto late = std::find_if(summary.ranks.begin(), summary.ranks.end(),
                                 [&](const RankSummary& rank) { return rank.rank == most->first; });
  summary.late_rank = most->first;
  summary.why =
      fmt::format("rank {} is late: the others wait for it {:.2f} ms a step ({:.0f} %); {}", most->first,
                  1e3 * most->second, 100 * most->second / step,
                  late == summary.ranks.end() ? "its own part of the trace is missing" : reason(summary, *late));
}

}  // namespace orthant
