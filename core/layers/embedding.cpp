#include "core/layers/embedding.h"

namespace orthant {
namespace {

constexpr Site embedding_leave{Region::embedding, Side::leave};
constexpr std::uint32_t dropout_site = 0;

}  // namespace

EmbeddingLayer::EmbeddingLayer(const ParamStore& store, const Settings& settings)
    : table_(store.ref("model.embed_tokens.weight")) {
  if (settings.model.positions == Positions::learned) {
    positions_ = store.ref("model.embed_positions.weight");
  }
  groups_ = store.groups_of_layer(0);
}

std::int64_t EmbeddingLayer::first_row() const {
  const Param& table = table_.param();
  return table.size[0] == table.spec.global[0] ? Stream::whole_table : table.offset[0];
}

Tensor EmbeddingLayer::forward(const StepContext& ctx, const Tensor&, Saved&) {
  const Tensor table = table_.weight();
  Tensor y = ctx.device().empty(ctx.compute(), {ctx.batch.tokens(), table.dim(1)});
  ctx.stream.embedding(y, table, ctx.batch.token, false, first_row());
  y = ctx.plan.cross(embedding_leave, y, ctx.stream);
  if (positions_.has_value()) {
    ctx.stream.embedding(y, positions_->weight(), ctx.rows_in(Region::norm, ctx.batch.position), true);
  }
  return branch_dropout(ctx, y, dropout_site);
}

Tensor EmbeddingLayer::backward(const StepContext& ctx, const Tensor& dy, Saved&) {
  const Tensor d = branch_dropout(ctx, dy, dropout_site);
  if (positions_.has_value() && positions_->wants_grad()) {
    ctx.stream.embedding_backward(positions_->grad(), d, ctx.rows_in(Region::norm, ctx.batch.position));
  }
  const Tensor dy_here = ctx.plan.cross_back(embedding_leave, d, ctx.stream);
  if (table_.wants_grad()) {
    ctx.stream.embedding_backward(table_.grad(), dy_here, ctx.batch.token, first_row());
  }
  return {};
}

}  // namespace orthant
