// The cross entropy of labels over all rows of an output matrix.
#pragma once

#include <orthant/objective.h>

namespace orthant {

struct TokenLosses {
  Tensor label;      // i32 [T]
  Tensor sum;        // f64 [1] += the losses
  Tensor each = {};  // f32 [T]: the losses; undefined: nobody asks
  float scale = 1;   // of the gradient
};
void cross_entropy(const TokenLosses& of, OutputRows& rows, const StepContext& ctx);

}  // namespace orthant
