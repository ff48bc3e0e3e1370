#include "core/model/block.h"

#include "core/arch/decoder.h"

namespace orthant {

Block::Block(const ParamStore& store, Plan& plan, const Link& link) : layer_(static_cast<std::uint32_t>(link.number)) {
  const Settings& settings = plan.settings();
  const int block = link.block;
  const std::string stem = block_stem(settings, block);
  const BlockNorms norms = block_norms(settings, stem);
  const auto norm = [&](std::optional<Norm>& to, const std::string& name) {
    if (!name.empty()) {
      to.emplace(store, name, settings);
    }
  };
  norm(before_attention_, norms.before_attention);
  norm(after_attention_, norms.after_attention);
  norm(before_ffn_, norms.before_ffn);
  norm(after_ffn_, norms.after_ffn);
  scale_ = static_cast<float>(settings.model.residual_scale);
  attention_ = attention_part(settings).make(attention_place(settings, block), store, plan);
  require(attention_ != nullptr, "attention part '{}' makes no layer for block {}", settings.model.attention, block);
  if (!link.router.empty()) {
    moe_.emplace(store, plan, link);
  } else {
    ffn_ = ffn_part(settings).make(ffn_place(settings, block), store, plan);
    require(ffn_ != nullptr, "FFN part '{}' makes no layer for block {}", settings.model.ffn, block);
  }
}

namespace {

// Sites of dropout masks: two in each block, after the embedding's.
std::uint32_t attention_site(std::uint32_t layer) {
  return 2 * layer;
}
std::uint32_t ffn_site(std::uint32_t layer) {
  return 2 * layer + 1;
}

Tensor entered(const StepContext& ctx, const Tensor& x, const std::optional<Norm>& norm, Saved& saved) {
  return norm.has_value() ? norm->forward(ctx, x, saved) : x;
}

// dx += the gradient of what entered.
void entered_backward(const StepContext& ctx, const Tensor& dx, const Tensor& d, const std::optional<Norm>& norm,
                      Saved& saved) {
  if (norm.has_value()) {
    norm->backward(ctx, dx, d, saved);
  } else {
    ctx.stream.add(dx, d);
  }
}

}  // namespace

Tensor Block::leave(const StepContext& ctx, Tensor y, const std::optional<Norm>& norm, std::uint32_t site,
                    Saved& saved) const {
  if (norm.has_value()) {
    y = norm->forward(ctx, y, saved);
  }
  if (scale_ != 1) {
    ctx.stream.scale(y, scale_);
  }
  return branch_dropout(ctx, y, site);
}

// The residual path keeps `dy` itself, so that what changes it needs a copy.
Tensor Block::leave_backward(const StepContext& ctx, const Tensor& dy, const std::optional<Norm>& norm,
                             std::uint32_t site, Saved& saved) const {
  Tensor d = dy;
  if (ctx.settings().model.dropout > 0 || scale_ != 1) {
    d = ctx.device().empty(dy.dtype(), dy.shape());
    ctx.stream.copy(d, dy);
    d = branch_dropout(ctx, d, site);
    if (scale_ != 1) {
      ctx.stream.scale(d, scale_);
    }
  }
  if (!norm.has_value()) {
    return d;
  }
  Tensor before = ctx.device().empty(d.dtype(), d.shape());
  ctx.stream.fill(before, 0);
  norm->backward(ctx, before, d, saved);
  return before;
}

Bundle Block::forward(const StepContext& ctx, const Bundle& from, Saved& saved) {
  const Tensor& x = from.front();
  Tensor y = attention_->forward(ctx, entered(ctx, x, before_attention_, saved), saved);
  y = leave(ctx, y, after_attention_, attention_site(layer_), saved);
  ctx.stream.add(y, x);
  const Tensor n = entered(ctx, y, before_ffn_, saved);
  Tensor z = moe_ ? moe_->forward(ctx, n, saved) : ffn_->forward(ctx, n, saved);
  z = leave(ctx, z, after_ffn_, ffn_site(layer_), saved);
  ctx.stream.add(z, y);
  return {z};
}

Bundle Block::backward(const StepContext& ctx, const Bundle& from, Saved& saved) {
  const Tensor& dy = from.front();
  const Tensor dz = leave_backward(ctx, dy, after_ffn_, ffn_site(layer_), saved);
  entered_backward(ctx, dy, moe_ ? moe_->backward(ctx, dz, saved) : ffn_->backward(ctx, dz, saved), before_ffn_, saved);
  const Tensor da = leave_backward(ctx, dy, after_attention_, attention_site(layer_), saved);
  entered_backward(ctx, dy, attention_->backward(ctx, da, saved), before_attention_, saved);
  return {dy};
}

}  // namespace orthant
