#include "core/layers/embedding.h"

namespace orthant {
namespace {

constexpr Site leave{Region::embedding, Side::leave};
constexpr std::uint32_t dropout_site = 0;

}  // namespace

EmbeddingLayer::EmbeddingLayer(ParamGroup& group) {
  groups_ = {&group};
}

Tensor EmbeddingLayer::forward(const StepContext& ctx, const Tensor&, Saved&) {
  const ParamGroup& group = *groups_.front();
  const Tensor table = group.weight_of(group.params[0]);
  Tensor y = ctx.device().empty(ctx.compute(), {ctx.batch.tokens(), table.dim(1)});
  ctx.stream.embedding(y, table, ctx.batch.token, false);
  if (group.params.size() > 1) {
    ctx.stream.embedding(y, group.weight_of(group.params[1]), ctx.batch.position, true);
  }
  return branch_dropout(ctx, ctx.plan.cross(leave, y, ctx.stream), dropout_site);
}

Tensor EmbeddingLayer::backward(const StepContext& ctx, const Tensor& dy, Saved&) {
  const ParamGroup& group = *groups_.front();
  const Tensor d = ctx.plan.cross_back(leave, branch_dropout(ctx, dy, dropout_site), ctx.stream);
  ctx.stream.embedding_backward(group.grad_of(group.params[0]), d, ctx.batch.token);
  if (group.params.size() > 1) {
    ctx.stream.embedding_backward(group.grad_of(group.params[1]), d, ctx.batch.position);
  }
  return {};
}

}  // namespace orthant
