#include "patch_embedding.h"

#include <utility>

#include <orthant/blocks.h>
#include <orthant/part.h>

#include "settings.h"

namespace orthant::images {
namespace {

constexpr std::uint32_t dropout_site = 0;

class PatchEmbedding final : public Layer {
 public:
  explicit PatchEmbedding(const Parameters& parameters)
      : matrix_(parameters.ref(patch_matrix)),
        kinds_(parameters.ref(kind_table)),
        positions_(parameters.ref(position_table)) {}

  Bundle forward(const StepContext& ctx, const Bundle&, Saved&) override {
    const Tensor y = linear(ctx, values(ctx), matrix_.weight());
    ctx.stream.embedding(y, kinds_.weight(), ctx.rows_in(Region::norm, ctx.batch.token), true);
    ctx.stream.embedding(y, positions_.weight(), ctx.rows_in(Region::norm, ctx.batch.position), true);
    return {branch_dropout(ctx, y, dropout_site)};
  }

  Bundle backward(const StepContext& ctx, const Bundle& from, Saved&) override {
    const Tensor dy = branch_dropout(ctx, from.front(), dropout_site);
    if (positions_.wants_grad()) {
      ctx.stream.embedding_backward(positions_.grad(), dy, ctx.rows_in(Region::norm, ctx.batch.position));
    }
    if (kinds_.wants_grad()) {
      ctx.stream.embedding_backward(kinds_.grad(), dy, ctx.rows_in(Region::norm, ctx.batch.token));
    }
    if (matrix_.wants_grad()) {
      ctx.stream.gemm(matrix_.grad(), dy, values(ctx), {.transpose_a = true, .beta = 1});
    }
    return {};
  }

 private:
  static Tensor values(const StepContext& ctx) {
    const Tensor own = ctx.rows_in(Region::norm, ctx.batch.value);
    if (ctx.compute() == DType::f32) {
      return own;
    }
    const Tensor narrow = ctx.device().empty(ctx.compute(), own.shape());
    ctx.stream.cast(narrow, own);
    return narrow;
  }

  ParamRef matrix_, kinds_, positions_;
};

ParamSpec matrix(const Settings& s, const char* name, std::int64_t rows, std::int64_t columns) {
  return {.name = name, .global = {rows, columns}, .region = Region::norm, .std = static_cast<float>(s.model.init_std)};
}

}  // namespace

Link embedding_link(const Settings& s) {
  const std::int64_t d = s.model.d_model;
  Link link{.name = "embedding"};
  link.parameters.push_back({.name = "patches", .params = {matrix(s, patch_matrix, d, patch_columns(s))}});
  link.parameters.push_back(
      {.name = "embedding",
       .looked_up = true,
       .params = {matrix(s, kind_table, 2, d), matrix(s, position_table, s.data.sequence_length, d)}});
  link.flops = 2 * static_cast<double>(d) * static_cast<double>(patch_columns(s));
  link.touched = static_cast<double>(d);
  link.passes = {{.name = "x", .columns = d, .dtype = compute_type(s)}};
  return link;
}

std::unique_ptr<Layer> make_embedding(const Parameters& parameters) {
  return std::make_unique<PatchEmbedding>(parameters);
}

}  // namespace orthant::images
