// One transformer block: x + attention(norm(x)), then that + ffn(norm(that)), the FFN dense or routed. With
// model.norm_place "after" a branch is norm(attention(x)), with "both" norm(attention(norm(x))); model.residual_scale
// multiplies it.
#pragma once

#include <memory>
#include <optional>

#include <orthant/part.h>

#include "core/layers/norm.h"
#include "experts/moe_layer.h"

namespace orthant {

class Block final : public Layer {
 public:
  // The link's block.
  Block(const ParamStore& store, Plan& plan, const Link& link);
  // x, dy: one tensor [T, d].
  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override;
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override;

 private:
  std::uint32_t layer_;  // Link::number
  // A branch's output on its way into the residual stream: normalised in place of `y`, scaled, some of it dropped.
  Tensor leave(const StepContext& ctx, Tensor y, const std::optional<Norm>& norm, std::uint32_t site,
               Saved& saved) const;
  // The gradient of what a branch has put out, from that of the stream.
  Tensor leave_backward(const StepContext& ctx, const Tensor& dy, const std::optional<Norm>& norm, std::uint32_t site,
                        Saved& saved) const;

  std::optional<Norm> before_attention_, after_attention_, before_ffn_, after_ffn_;
  float scale_ = 1;  // model.residual_scale
  std::unique_ptr<PartLayer> attention_;
  std::unique_ptr<PartLayer> ffn_;  // null where the block has experts
  std::optional<MoeLayer> moe_;
};

}  // namespace orthant
