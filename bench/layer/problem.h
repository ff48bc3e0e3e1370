// One routed layer on one device: its tensors, and each of its steps as a call that can be timed.
#pragma once

#include <orthant/device.h>
#include <orthant/ops.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/layer/shapes.h"

namespace orthant::bench {

// A step of the layer, with what it cannot do without: the larger of the two over the machine's rates is its floor.
struct Step {
  std::string name;
  std::function<void()> run;
  double flops = 0;  // of matrix products
  double bytes = 0;  // each input read once, each output written once
};

class LayerProblem {
 public:
  // dtype: of activations and weights. skewed: some experts are much likelier than others.
  LayerProblem(Device& device, Stream& stream, const LayerShape& shape, DType dtype, bool skewed);

  // The router, its metadata and the moves of rows, the products, the activations: in the order of a training step.
  std::vector<Step> steps();
  // The whole layer, from router to combined outputs; and with its backward pass, all gradients.
  void forward();
  void backward();

  double forward_flops() const;  // of the experts; backward needs twice as many
  double load_max_over_mean();   // of the experts; waits for the device

 private:
  Tensor empty(DType dtype, Shape shape) { return device_.empty(dtype, shape); }
  Tensor normal(DType dtype, Shape shape, float deviation);
  void route();
  void unroute();

  Device& device_;
  Stream& s_;
  LayerShape shape_;
  DType dtype_;
  GateConfig config_;
  RandomKey key_{.seed = 1};
  std::uint32_t drawn_ = 0;
  std::int64_t rows_, hidden_;  // T K; n, or 2 n where the activation is gated

  Tensor x_, y_, dy_, dx_;                                   // [T, d]
  Tensor router_, drouter_;                                  // [E, d]
  Tensor w_in_, w_out_;                                      // [E, hidden, d], [E, d, n]
  Tensor dw_in_, dw_out_;                                    // f32, as those
  Tensor logits_, dlogits_, dlogits_narrow_;                 // [T, E]
  Tensor expert_, weight_, lse_, chosen_, share_, dweight_;  // as Stream::gate
  Tensor valid_, token_, count_, dropped_;                   // as Stream::dispatch_plan
  Tensor balance_, z_;                                       // f64 [1]
  Dispatch dispatch_;
  Tensor h_, dh_, a_, da_;  // [R, hidden], [R, n]
  Tensor packed_, out_;     // [R, d]
};

}  // namespace orthant::bench
