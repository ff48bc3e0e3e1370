#include "core/dry_run/promise.h"

#include <algorithm>

#include "core/base/bytes_text.h"
#include "core/dry_run/cheaper.h"

namespace orthant {
namespace {

constexpr std::size_t most_changes = 3;  // that are named

std::string kinds_text(const BytesByKind& kinds) {
  std::string text;
  for (MemoryKind kind : all_memory_kinds) {
    if (kinds[kind] > 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(kind), bytes_text(kinds[kind]));
    }
  }
  return text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? fmt::format("rank {}", ranks.front())
                           : fmt::format("rank {} and the {} like it", ranks.front(), ranks.size() - 1);
}

void refuse(const Config& config, const Need& need, std::int64_t limit) {
  std::vector<Saving> changes = fitting_changes(config, need, limit);
  const bool only_worst = need.balanced <= limit;
  // What the worst routing needs is what a capacity is for.
  const auto drops = std::find_if(changes.begin(), changes.end(), [](const Saving& c) { return c.drops; });
  if (only_worst && drops != changes.end()) {
    std::rotate(changes.begin(), drops, drops + 1);
  }
  changes.resize(std::min(changes.size(), most_changes));
  std::string advice = fmt::format("{} would hold {}", ranks_text(need.ranks), kinds_text(need.kinds));
  if (only_worst) {
    advice += fmt::format(
        ".\n      By balanced routing {} fit: only the worst routing, every token to the experts of one rank, does not",
        bytes_text(need.balanced));
  }
  advice += changes.empty()
                ? fmt::format(
                      ".\n      No change was found that fits: give more memory, or more ranks, or keep some of it "
                      "elsewhere (docs/memory.md)")
                : std::string(".\n      Each of these fits:");
  for (const Saving& change : changes) {
    advice += fmt::format("\n        {:<32} {}; {}", change.what, bytes_text(change.need.worst), change.cost());
  }
  Diagnostics refused = config.diagnostics();
  refused.add(config.tables.empty() ? "default" : config.origin("memory.limit"),
              fmt::format("[memory] limit: this run may need {} on a rank, the limit is {}", bytes_text(need.worst),
                          bytes_text(limit)),
              advice);
  refused.throw_if_any();
}

}  // namespace

Need memory_need(const Config& config) {
  Need need;
  for (const RankClass& c : plan_classes(config)) {
    // Both are bounds: the late side streams of one may hide what the routing of the other needs.
    const MemoryPlan& most = c.worst.peak >= c.memory.peak ? c.worst : c.memory;
    if (most.peak > need.worst) {
      need.ranks = c.ranks;
      need.worst = most.peak;
      need.kinds = most.peak_kinds;
    }
    need.balanced = std::max(need.balanced, c.memory.peak);
    need.sent = std::max(need.sent, c.sent);
  }
  return need;
}

std::string promise_memory(Config& config) {
  const std::int64_t limit = config.settings.memory.limit;
  std::string& recompute = config.settings.memory.recompute;
  if (limit == 0) {
    return "";
  }
  if (recompute != "fit") {
    if (const Need need = memory_need(config); need.worst > limit) {
      refuse(config, need, limit);
    }
    return "";
  }
  Need need;
  for (const char* choice : {"none", "selective", "full"}) {
    recompute = choice;
    need = memory_need(config);
    if (need.worst <= limit) {
      return fmt::format("memory.recompute = \"fit\" is \"{}\" here: a rank needs at most {} of {}", choice,
                         bytes_text(need.worst), bytes_text(limit));
    }
  }
  refuse(config, need, limit);
  return "";
}

}  // namespace orthant
