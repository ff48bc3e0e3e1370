// Adapters: the weights that layers read while adapters are trained (Hu et al., "LoRA", 2021), and their gradients.
//
// While a layer runs, W + scale B A lies in a copy of its group's weights, which every product reads as it reads W: no
// layer, expert or axis knows of it. W itself is never written. Behind a backward pass the gradient of W, which is that
// of the sum, becomes those of A and B: dA += scale B^T dW and dB += scale dW A^T. Both are linear in dW, so a rank
// adds what its own tokens and its own slice of W give, and the sums over ranks are those of any parameter.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <map>
#include <vector>

#include <orthant/step_context.h>

#include "core/layers/parameter_store.h"

namespace orthant {

class Adapters {
 public:
  // Of those that this rank holds. The store outlives them.
  Adapters(const ParamStore& store, const Settings& settings);

  // Around each pass of a layer. REQUIRES: the weights of its groups are acquired, and those of its adapters.
  void merge(int layer, const StepContext& ctx);
  void restore(int layer);
  // Once, for a model that is only read: the copies stay, and nothing is merged again. REQUIRES: as merge, for all
  // layers.
  void merge_for_good(const StepContext& ctx);
  // Behind a pass that has added to the gradients of these groups of the layer. The gradient of W is spent then.
  // REQUIRES: merged.
  void add_gradients(int layer, const std::vector<ParamGroup*>& groups, const StepContext& ctx) const;

 private:
  struct Adapted {
    ParamRef w, a, b;  // [out, in], [rank, in], [out, rank]
    float scale;
  };
  struct Merged {
    ParamGroup* group = nullptr;
    std::vector<Adapted> parts;
    Tensor base;  // the group's weights, while the copy is in their place
  };
  void merge(Merged& merged, const StepContext& ctx);
  std::vector<Merged> merged_;
  std::map<int, std::vector<std::size_t>> by_layer_;  // in merged_; several layers may use one matrix
};

}  // namespace orthant
