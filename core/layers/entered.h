// What has entered a region, from the forward pass to the backward pass of the products that read it.
//
// A boundary may make more of what crosses it, as the all-gather of sequence parallelism does. What came before it is
// then kept, and crosses again in the backward pass: on a stream beside the main one where there is one
// (StepSums::beside), while the main one computes the gradient of the same tensor. With memory.recompute = "full" the
// two passes follow each other, and what has crossed is kept.
//
// Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4.2.2.
#pragma once

#include <memory>

#include "core/layers/layer.h"

namespace orthant {

class Entered {
 public:
  // In the forward pass: `entered` is what `before` has become.
  static void save(const StepContext& ctx, const Tensor& before, const Tensor& entered, Saved& saved);

  // In the backward pass: takes back what `save` has pushed. read: somebody asks for it; else nothing crosses again.
  Entered(const StepContext& ctx, Site site, bool read, Saved& saved);
  // REQUIRES: it was to be read.
  const Tensor& get() const;

 private:
  Stream& main_;
  Tensor x_;                           // [T, d]
  std::shared_ptr<Event> ready_ = {};  // where it comes from another stream
};

// As linear_backward (part.h). x is asked for when dx is enqueued.
Tensor linear_backward(const StepContext& ctx, const Tensor& dy, const Entered& x, const Tensor& w, const Tensor& dw);

}  // namespace orthant
