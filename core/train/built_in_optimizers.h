// The optimizers and learning-rate schedules that the core brings.
#pragma once

#include <orthant/catalogue.h>
#include <orthant/learning_rate.h>
#include <orthant/optimizer.h>

namespace orthant {

void add_optimizers(Catalogue& catalogue);      // adamw, sgd, muon
void add_learning_rates(Catalogue& catalogue);  // constant, cosine, inverse_sqrt, wsd, wsd_sqrt

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019). settings: betas, eps.
void adamw_update(const UpdateSlice& slice, const UpdateStep& step, Stream& s);
std::shared_ptr<const Optimizer> make_muon();

}  // namespace orthant
