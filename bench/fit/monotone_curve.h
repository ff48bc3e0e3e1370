// A training curve without its noise: local quadratics through five evaluations each, made monotone by pooling adjacent
// violators (Ayer et al., "An Empirical Distribution Function for Sampling with Incomplete Information", 1955),
// straight between evaluations; all of it in ln step and ln loss.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace orthant {

struct CurvePoint {
  double step = 0;
  double loss = 0;  // validation loss, nats per token
};

class MonotoneCurve {
 public:
  // Points at step 0 are left out. Errors: Error for fewer than two others, for steps that do not ascend, and for
  // losses that are not finite and above 0.
  explicit MonotoneCurve(std::span<const CurvePoint> points);

  // The first step at which the curve is at or below `loss`; none where it never is. Where it begins below, the first
  // step that was measured: see begins_below.
  std::optional<double> step_where(double loss) const;
  bool begins_below(double loss) const;
  double loss(double step) const;  // REQUIRES: within the curve

  // What the curve took away, of ln loss, scaled to the size of the noise; empty where there are too few evaluations to
  // tell (six).
  const std::vector<double>& residuals() const { return residuals_; }
  // The evaluations without their noise, but not yet made monotone, with `shift` added to ln loss of each: what a
  // resample begins with. REQUIRES: one shift for each evaluation, or none.
  std::vector<CurvePoint> smooth(std::span<const double> shift) const;

 private:
  std::vector<double> log_step_, smooth_, monotone_, residuals_;
};

}  // namespace orthant
