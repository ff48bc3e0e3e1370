// One pre-norm transformer block: x + attention(norm(x)), then that + ffn(norm(that)), the FFN dense or routed.
#pragma once

#include <memory>
#include <optional>

#include "core/layers/attention.h"
#include "core/layers/ffn.h"
#include "core/layers/norm.h"
#include "experts/moe_layer.h"

namespace orthant {

class Block final : public Layer {
 public:
  // `block` counts from 0; its layer number is one more.
  Block(const ParamStore& store, Plan& plan, int block);
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) override;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) override;

 private:
  Tensor run(const StepContext& ctx, const Tensor& x, std::optional<Routing>& routing, Saved& saved);
  std::uint32_t layer_;
  std::optional<Norm> norm1_, norm2_;
  std::optional<Attention> attention_;
  std::optional<Ffn> ffn_;
  std::optional<MoeLayer> moe_;
};

}  // namespace orthant
