#include "core/dry_run/recompute_choice.h"

#include "core/plan/recompute_rule.h"
#include "core/session/session.h"

namespace orthant {

Config with_recompute(Config config, const std::string& recompute, std::int64_t keep) {
  config.settings.memory.recompute = recompute;
  config.settings.memory.keep_micro_batches = keep;
  return config;
}

std::optional<RecomputeChoice> most_kept(const Config& config, const char* recompute, std::int64_t most) {
  std::optional<RecomputeChoice> found;
  // All up to `fits` do, none from `too_many` on.
  for (std::int64_t fits = -1, too_many = most + 1; too_many - fits > 1;) {
    const std::int64_t keep = fits < 0 ? 0 : (fits + too_many) / 2;
    Need need = memory_need(with_recompute(config, recompute, keep));
    if (keeps_limits(need, config.settings.memory)) {
      fits = keep;
      found = RecomputeChoice{.recompute = recompute, .keep = keep, .need = std::move(need)};
    } else {
      too_many = keep;
    }
  }
  return found;
}

std::int64_t most_in_flight(const Config& config) {
  Session session(config);
  session.plan(0, nullptr, nullptr);
  return most_in_flight(session.plan());
}

}  // namespace orthant
