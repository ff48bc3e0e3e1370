#include "core/dry_run/promise.h"

#include <algorithm>
#include <optional>

#include "core/base/bytes_text.h"
#include "core/base/flops_text.h"
#include "core/dry_run/cheaper.h"
#include "core/dry_run/recompute_choice.h"

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
  std::vector<Saving> changes = fitting_changes(config, need);
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
                      "elsewhere (docs/guides/memory.md)")
                : std::string(".\n      Each of these fits:");
  std::size_t width = 32;
  for (const Saving& change : changes) {
    width = std::max(width, change.what.size() + 1);
  }
  for (const Saving& change : changes) {
    advice += fmt::format("\n        {:<{}} {}; {}", change.what, width, bytes_text(change.need.worst), change.cost());
  }
  Diagnostics refused = config.diagnostics();
  refused.add(config.tables.empty() ? "default" : config.origin("memory.limit"),
              fmt::format("[memory] limit: this run may need {} on a rank, the limit is {}", bytes_text(need.worst),
                          bytes_text(limit)),
              advice);
  refused.throw_if_any();
}

void refuse_host(const Config& config, const Need& need, std::int64_t limit) {
  Diagnostics refused = config.diagnostics();
  refused.add(config.tables.empty() ? "default" : config.origin("memory.host_limit"),
              fmt::format("[memory] host_limit: this run may need {} of the host's memory on a rank, the limit is {}",
                          bytes_text(need.host), bytes_text(limit)),
              fmt::format("{} would hold it in {}: `orthant plan` shows how much. Let less be kept there, or give more "
                          "memory, or more ranks",
                          ranks_text(need.host_ranks),
                          config.settings.run.checkpoint_async
                              ? "tensors of plugins and the copy of run.checkpoint_async, which waits to be written"
                              : "tensors of plugins"));
  refused.throw_if_any();
}

// Of what keeps the limits, that which costs least; nothing where none does.
std::optional<RecomputeChoice> cheapest(const Config& config) {
  const Need none = memory_need(with_recompute(config, "none", 0));
  if (keeps_limits(none, config.settings.memory)) {
    return RecomputeChoice{.recompute = "none", .keep = 0, .need = none};
  }
  std::optional<RecomputeChoice> best;
  double least = 0;
  for (const char* recompute : {"selective", "full"}) {
    auto choice = most_kept(config, recompute, most_in_flight(config) - 1);
    if (!choice) {
      continue;
    }
    const double price =
        Saving{.what = {}, .need = {}, .flops = choice->need.recomputed, .bytes = choice->need.sent - none.sent}
            .price();
    if (!best || price < least) {
      best = std::move(choice);
      least = price;
    }
  }
  return best;
}

// What "fit" is.
std::string choice_text(const RecomputeChoice& choice, std::int64_t limit) {
  std::string text = fmt::format("memory.recompute = \"fit\" is \"{}\" here", choice.recompute);
  if (choice.keep > 0) {
    text += fmt::format(" with keep_micro_batches = {}", choice.keep);
  }
  text += fmt::format(": a rank needs at most {} of {}", bytes_text(choice.need.worst), bytes_text(limit));
  if (choice.need.recomputed > 0) {
    text += fmt::format(", and computes {} again in a step", flops_text(choice.need.recomputed));
  }
  return text;
}

// Likewise as promise_memory, of memory.limit alone. Returns the need.
Need promise_device_memory(Config& config, std::string& chosen) {
  const std::int64_t limit = config.settings.memory.limit;
  if (config.settings.memory.recompute == "fit") {
    if (const std::optional<RecomputeChoice> choice = cheapest(config)) {
      config = with_recompute(std::move(config), choice->recompute, choice->keep);
      chosen = choice_text(*choice, limit);
      return choice->need;
    }
    config = with_recompute(std::move(config), "full", 0);
  }
  Need need = memory_need(config);
  if (limit > 0 && need.worst > limit) {
    refuse(config, need, limit);
  }
  return need;
}

}  // namespace

Need memory_need(const Config& config) {
  Need need;
  double ranks = 0;
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
    if (const std::int64_t host = std::max(c.worst.host_peak, c.memory.host_peak); host > need.host) {
      need.host_ranks = c.ranks;
      need.host = host;
    }
    need.recomputed += c.recomputed.flops * static_cast<double>(c.ranks.size());
    ranks += static_cast<double>(c.ranks.size());
  }
  need.recomputed /= ranks;
  return need;
}

bool keeps_limits(const Need& need, const MemorySettings& limits) {
  return (limits.limit == 0 || need.worst <= limits.limit) &&
         (limits.host_limit == 0 || need.host <= limits.host_limit);
}

std::string promise_memory(Config& config) {
  const MemorySettings memory = config.settings.memory;
  if (memory.limit == 0 && memory.host_limit == 0) {
    return "";
  }
  std::string chosen;
  const Need need = promise_device_memory(config, chosen);
  if (memory.host_limit > 0 && need.host > memory.host_limit) {
    refuse_host(config, need, memory.host_limit);
  }
  return chosen;
}

}  // namespace orthant
