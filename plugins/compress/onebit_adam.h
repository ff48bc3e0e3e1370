// onebit_adam: Adam whose second moment stays as it is from a step on, so that the first one is all that ranks need to
// sum (Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML
// 2021). Until `freeze_after` steps are taken it is AdamW. From then on it meets the momentum in the place of the
// gradient (coded_sums.h); the second moment's correction stays that of the last step before.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include <orthant/keys.h>
#include <orthant/optimizer.h>

namespace orthant::compress {

inline constexpr const char* onebit_adam = "onebit_adam";

struct OnebitKeys {
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  std::int64_t freeze_after = 100;
  static const Keys<OnebitKeys>& keys();
};

std::shared_ptr<const Optimizer> make_onebit_adam();

}  // namespace orthant::compress
