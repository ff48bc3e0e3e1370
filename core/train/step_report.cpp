#include <orthant/hook.h>

#include <algorithm>

namespace orthant {

double StepReport::drop_rate() const {
  std::int64_t choices = 0, dropped = 0;
  for (const LayerCounters& layer : layers) {
    choices += layer.choices;
    dropped += layer.dropped_by_capacity + layer.dropped_by_chance;
  }
  return choices == 0 ? 0 : static_cast<double>(dropped) / static_cast<double>(choices);
}

double StepReport::expert_load_max_over_mean() const {
  double worst = layers.empty() ? 0 : 1;
  for (const LayerCounters& layer : layers) {
    std::int64_t most = 0, all = 0;
    for (std::int64_t load : layer.load) {
      most = std::max(most, load);
      all += load;
    }
    if (all > 0) {
      worst = std::max(worst,
                       static_cast<double>(most) * static_cast<double>(layer.load.size()) / static_cast<double>(all));
    }
  }
  return worst;
}

}  // namespace orthant
