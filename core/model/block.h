// One pre-norm transformer block: x + attention(norm(x)), then that + ffn(norm(that)), the FFN dense or routed.
#pragma once

#include <memory>
#include <optional>

#include <orthant/part.h>

#include "core/layers/norm.h"
#include "experts/moe_layer.h"

namespace orthant {

class Block final : public Layer {
 public:
  // `block` counts from 0 (layer_of_block).
  Block(const ParamStore& store, Plan& plan, int block);
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) override;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) override;

 private:
  Tensor run(const StepContext& ctx, const Tensor& x, std::optional<Routing>& routing, Saved& saved);
  std::uint32_t layer_;
  std::optional<Norm> norm1_, norm2_;
  std::unique_ptr<PartLayer> attention_;
  std::unique_ptr<PartLayer> ffn_;  // null where the block has experts
  std::optional<MoeLayer> moe_;
};

}  // namespace orthant
