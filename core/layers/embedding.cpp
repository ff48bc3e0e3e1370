#include "core/layers/embedding.h"

namespace orthant {
namespace {

constexpr Site embedding_leave{Region::embedding, Side::leave};
constexpr std::uint32_t dropout_site = 0;

}  // namespace

TokenTable::TokenTable(const ParamStore& store) : table_(store.ref("model.embed_tokens.weight")) {}

std::int64_t TokenTable::first_row() const {
  const Param& table = table_.param();
  return table.size[0] == table.spec.global[0] ? Stream::whole_table : table.offset[0];
}

Tensor TokenTable::rows(const StepContext& ctx, const Tensor& ids) const {
  const Tensor table = table_.weight();
  Tensor y = ctx.device().empty(ctx.compute(), {ids.dim(0), table.dim(1)});
  ctx.stream.embedding(y, table, ids, false, first_row());
  y = ctx.cross(embedding_leave, y);
  if (const double by = ctx.settings().model.embedding_scale; by != 1) {
    ctx.stream.scale(y, static_cast<float>(by));
  }
  return y;
}

void TokenTable::add_gradient(const StepContext& ctx, const Tensor& dy, const Tensor& ids) const {
  Tensor d = dy;
  if (const double by = ctx.settings().model.embedding_scale; by != 1) {
    d = ctx.device().empty(dy.dtype(), dy.shape());
    ctx.stream.copy(d, dy);
    ctx.stream.scale(d, static_cast<float>(by));
  }
  const Tensor dy_here = ctx.cross_back(embedding_leave, d);
  if (table_.wants_grad()) {
    ctx.stream.embedding_backward(table_.grad(), dy_here, ids, first_row());
  }
}

EmbeddingLayer::EmbeddingLayer(const ParamStore& store, const Settings& settings) : table_(store) {
  if (settings.model.positions == Positions::learned) {
    positions_ = store.ref("model.embed_positions.weight");
  }
}

Bundle EmbeddingLayer::forward(const StepContext& ctx, const Bundle&, Saved&) {
  Tensor y = table_.rows(ctx, ctx.batch.token);
  if (positions_.has_value()) {
    ctx.stream.embedding(y, positions_->weight(), ctx.rows_in(Region::norm, ctx.batch.position), true);
  }
  return {branch_dropout(ctx, y, dropout_site)};
}

Bundle EmbeddingLayer::backward(const StepContext& ctx, const Bundle& dy, Saved&) {
  const Tensor d = branch_dropout(ctx, dy.front(), dropout_site);
  if (positions_.has_value() && positions_->wants_grad()) {
    ctx.stream.embedding_backward(positions_->grad(), d, ctx.rows_in(Region::norm, ctx.batch.position));
  }
  table_.add_gradient(ctx, d, ctx.batch.token);
  return {};
}

}  // namespace orthant
