#include "bench/study/counterfactual.h"

#include "apps/route/replay.h"
#include "core/config/config.h"
#include "core/session/session.h"

namespace orthant {

bool is_recorded(const GridPoint& point) {
  return point.experts > 1 && point.capacity_factor == 0;
}

nlohmann::ordered_json counterfactual_drops(const StudyFolder& folder, const GridPoint& point,
                                            const std::vector<double>& capacity_factors) {
  Settings settings = load_config(folder.config().string(), point.set, keys_of_plugin, kinds_of_plugin).settings;
  const std::filesystem::path run = folder.run_of(point);
  const RecordedStep step = read_recording(run, recorded_steps(run).back(), settings);
  nlohmann::ordered_json drops = nlohmann::ordered_json::array();
  for (double factor : capacity_factors) {
    settings.moe.capacity_factor = factor;
    std::int64_t choices = 0, dropped = 0;
    for (const Decisions& layer : replay(step, settings)) {
      choices += layer.choices;
      dropped += layer.dropped_by_capacity;
    }
    drops.push_back({factor, choices == 0 ? 0.0 : static_cast<double>(dropped) / static_cast<double>(choices)});
  }
  return drops;
}

}  // namespace orthant
