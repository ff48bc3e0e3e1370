// Where gradients are kept in bf16 (optimizer.gradient_dtype) a layer adds to f32 numbers that last while it runs, in
// the place of ParamGroup::grad. Behind the layer they are added to what the group keeps, and each sum is rounded once,
// to the nearest number.
//
// Source of the rule: Megatron-LM adds the product of a layer, which is summed in f32, to gradients in the type of the
// weights.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <map>

#include <orthant/ops.h>
#include <orthant/param_group.h>

namespace orthant {

class WideGradients {
 public:
  // Until `round` the group's grad is f32 [elements], and empty. Nothing happens where gradients are kept in f32.
  // REQUIRES: the gradient is acquired.
  void widen(ParamGroup& group, Device& device);
  // Nothing happens where `widen` did nothing.
  void round(ParamGroup& group, Stream& s);
  // Of a pass that failed.
  void drop();

 private:
  struct Kept {
    ParamGroup* group = nullptr;
    Tensor grad;  // bf16 [padded]
    bool empty = false;
  };
  std::map<int, Kept> kept_;  // by ParamGroup::id
};

}  // namespace orthant
