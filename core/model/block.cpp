#include "core/model/block.h"

#include "core/arch/parameter_table.h"

namespace orthant {

Block::Block(const ParamStore& store, Plan& plan, int block)
    : layer_(static_cast<std::uint32_t>(layer_of_block(plan.settings(), block))) {
  const Settings& settings = plan.settings();
  const std::string stem = block_stem(settings, block);
  groups_ = store.groups_of_layer(static_cast<int>(layer_));
  norm1_.emplace(store, stem + ".input_layernorm", settings);
  attention_ = attention_part(settings).make(attention_place(settings, block), store, plan);
  norm2_.emplace(store, stem + ".post_attention_layernorm", settings);
  require(attention_ != nullptr, "attention part '{}' makes no layer for block {}", settings.model.attention, block);
  if (block_has_experts(settings, block)) {
    moe_.emplace(store, stem + ".block_sparse_moe", plan, static_cast<int>(layer_));
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

// The gradient that enters a branch. The residual path keeps `dy` itself, so a mask needs a copy.
Tensor into_branch(const StepContext& ctx, const Tensor& dy, std::uint32_t site) {
  if (ctx.settings().model.dropout <= 0) {
    return dy;
  }
  Tensor d = ctx.device().empty(dy.dtype(), dy.shape());
  ctx.stream.copy(d, dy);
  return branch_dropout(ctx, d, site);
}

}  // namespace

Tensor Block::forward(const StepContext& ctx, const Tensor& x, Saved& saved) {
  std::optional<Routing> routing;
  if (!ctx.training || ctx.recompute != Recompute::full) {
    return run(ctx, x, routing, saved);
  }
  Saved forgotten;
  const Tensor y = run(ctx, x, routing, forgotten);
  saved.push(x);
  if (routing.has_value()) {
    routing->save(saved);
  }
  return y;
}

Tensor Block::run(const StepContext& ctx, const Tensor& x, std::optional<Routing>& routing, Saved& saved) {
  Tensor y =
      branch_dropout(ctx, attention_->forward(ctx, norm1_->forward(ctx, x, saved), saved), attention_site(layer_));
  ctx.stream.add(y, x);
  const Tensor n = norm2_->forward(ctx, y, saved);
  Tensor z = branch_dropout(ctx, moe_ ? moe_->forward(ctx, n, routing, saved) : ffn_->forward(ctx, n, saved),
                            ffn_site(layer_));
  ctx.stream.add(z, y);
  return z;
}

Tensor Block::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) {
  if (ctx.recompute == Recompute::full) {
    std::optional<Routing> routing;
    if (moe_) {
      routing = Routing::take(saved);
    }
    const Tensor x = saved.pop();
    run(ctx, x, routing, saved);
  }
  const Tensor dz = into_branch(ctx, dy, ffn_site(layer_));
  norm2_->backward(ctx, dy, moe_ ? moe_->backward(ctx, dz, saved) : ffn_->backward(ctx, dz, saved), saved);
  const Tensor da = into_branch(ctx, dy, attention_site(layer_));
  norm1_->backward(ctx, dy, attention_->backward(ctx, da, saved), saved);
  return dy;
}

}  // namespace orthant
