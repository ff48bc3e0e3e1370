// LatentCore: latent attention of tokens that are fed one after the other, in place of the plan's attention core.
//
// Keys and values of all heads are made of one narrow row a token. So the rows are enough to remember, and this seam
// gets them with the way to widen them.
#pragma once

#include <functional>

#include <orthant/ops.h>

namespace orthant {

class LatentCore {
 public:
  virtual ~LatentCore() = default;
  struct Keys {
    Tensor k, v;  // [R, h c] both
  };
  // Of narrow rows [R, w]. What a row becomes does not depend on the others, bit for bit on the CPU.
  using Widen = std::function<Keys(const Tensor& narrow)>;
  // q [T, h c] and narrow [T, w] of a pass's tokens, in the compute type -> o [T, h c].
  virtual Tensor attend(const Tensor& q, const Tensor& narrow, const Widen& widen, const AttentionShape& shape,
                        Stream& s) = 0;
};

}  // namespace orthant
