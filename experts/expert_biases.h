// The biases of a layer's routed experts (moe.expert_bias): rows of an expert get its bias, and give its gradient.
//
// Both are grouped products with a column of ones, so that every device has them. The bias of the second product is
// added where an expert's channels begin: of the ranks that share an expert one adds it, and all get its gradient.
#pragma once

#include <string>
#include <vector>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"

namespace orthant {

class ExpertBiases {
 public:
  // weights: of the routed experts on this rank, first and second matrices, as Experts has them. n: columns of an
  // expert's first products on this rank.
  ExpertBiases(const ParamStore& store, const std::vector<Param>& weights, std::int64_t experts, std::int64_t n);

  // offset i32: of the rows of experts [experts.begin, + count) of this rank, and their end.
  // h f [R, n] += ; y f [R, d] +=, on the rank that adds it.
  void add_in(const StepContext& ctx, const Tensor& h, const Tensor& offset, const Range& experts) const;
  void add_out(const StepContext& ctx, const Tensor& y, const Tensor& offset, const Range& experts) const;
  // Adds to the biases' gradients, and gives that part of the weights' that the second bias makes.
  //   dweight  f32 [R, 1] = each row's <dy, the second bias>, or 0 where another rank adds it
  //   dh       f [R, n]: the gradient of h, weights included
  //   dy       f [R, d]: that of the rows' results, as if their weights were 1
  //   weight   f32 [R, 1]
  void backward(const StepContext& ctx, const Tensor& dweight, const Tensor& dh, const Tensor& dy, const Tensor& weight,
                const Tensor& offset, const Range& experts) const;

 private:
  Tensor in(const Tensor& flat, const Range& experts) const;   // [E, 1, n]
  Tensor out(const Tensor& flat, const Range& experts) const;  // [E, 1, d]

  ParamMatrix in_, out_;  // [E n, 1], [E d, 1]
  std::int64_t experts_, n_, d_;
  bool adds_out_;
};

}  // namespace orthant
