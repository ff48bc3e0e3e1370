// The optimizers and learning-rate schedules that the core brings.
#pragma once

#include <array>
#include <memory>

#include <orthant/catalogue.h>
#include <orthant/learning_rate.h>
#include <orthant/optimizer.h>

namespace orthant {

// Of adamw, and of muon for what it leaves to adamw.
struct AdamKeys {
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  static const Keys<AdamKeys>& keys();
};
// Of sgd and muon.
struct MomentumKeys {
  double momentum = 0.9;
  static const Keys<MomentumKeys>& keys();
};

void add_optimizers(Catalogue& catalogue);      // adamw, sgd, muon
void add_learning_rates(Catalogue& catalogue);  // constant, cosine, inverse_sqrt, wsd, wsd_sqrt

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019). Reads AdamKeys.
void adamw_update(const UpdateSlice& slice, const UpdateStep& step, Stream& s);
std::shared_ptr<const Optimizer> make_muon();

}  // namespace orthant
