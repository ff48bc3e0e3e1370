#include <orthant/settings.h>
#include <orthant/weight_average.h>

#include <algorithm>

namespace orthant {

double average_decay(const OptimizerSettings& settings, std::int64_t step) {
  const double s = static_cast<double>(step);
  return std::min(settings.ema_decay, (1 + s) / (10 + s));
}

// descend makes p - lr (u + weight_decay p): with lr = -(1 - d) and weight_decay = -1 it is d p + (1 - d) u. Its d is
// 1 - (1 - d) in f32, without rounding: both add up to 1, and an average does not shrink with the steps.
void move_average(const Tensor& average, const Tensor& weights, const Tensor& finite, const OptimizerSettings& settings,
                  std::int64_t step, Stream& s) {
  const float share = 1.0f - static_cast<float>(average_decay(settings, step));
  s.descend(average, average, weights, finite, -share, -1.0f);
}

}  // namespace orthant
