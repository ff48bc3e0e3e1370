// Rows of tokens times weights of their own, from operations that every device has.
#pragma once

#include "core/layers/layer.h"

namespace orthant {

// weight f32 [T, K] -> f32 [T, d]: the sum of a token's K weights, in every column.
Tensor spread_weights(const StepContext& ctx, const Tensor& weight, std::int64_t d);
// x f [T, d] and by f [T, d] -> x * by, element by element, in a tensor of its own.
Tensor product(const StepContext& ctx, DType dtype, const Tensor& x, const Tensor& by);
// f32 [T, K], in each column <a, b> of the token's rows a, b f [T, d]: the gradient of each weight of y = b times their
// sum, for a = dy.
Tensor row_products(const StepContext& ctx, const Tensor& a, const Tensor& b, std::int64_t columns);

}  // namespace orthant
