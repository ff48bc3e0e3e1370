#include <optional>

#include <orthant/blocks.h>
#include <orthant/settings.h>

#include "chain.h"
#include "layers.h"
#include "settings.h"

namespace orthant::encoder {
namespace {

constexpr Site embedding_leave{Region::embedding, Side::leave};

class EncoderEmbedding final : public Layer {
 public:
  EncoderEmbedding(const Parameters& parameters, const Plan& plan)
      : tokens_(parameters.ref("model.embed_tokens.weight")) {
    const Settings& s = plan.settings();
    const EncoderKeys keys = encoder_keys(s);
    if (s.model.positions == Positions::learned) {
      positions_ = parameters.ref("model.embed_positions.weight");
    }
    if (keys.token_types > 0) {
      types_ = parameters.ref(types_name);
    }
    if (keys.embedding_norm) {
      norm_ = make_norm(embedding_norm_stem, parameters, plan);
    }
  }

  Bundle forward(const StepContext& ctx, const Bundle&, Saved& saved) override {
    const Tensor table = tokens_.weight();
    Tensor y = ctx.device().empty(ctx.compute(), {ctx.batch.token.dim(0), table.dim(1)});
    ctx.stream.embedding(y, table, ctx.batch.token, false, first_row());
    y = ctx.cross(embedding_leave, y);  // [T, d]
    if (positions_.has_value()) {
      ctx.stream.embedding(y, positions_->weight(), ctx.rows_in(Region::norm, ctx.batch.position), true);
    }
    if (types_.has_value()) {
      ctx.stream.gemm(y, types_of(ctx), types_->weight(), {.beta = 1});
    }
    if (norm_ != nullptr) {
      y = norm_->forward(ctx, y, saved);
    }
    return {branch_dropout(ctx, y, 0)};
  }

  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    Tensor d = branch_dropout(ctx, dy.front(), 0);
    if (norm_ != nullptr) {
      d = norm_->backward(ctx, d, saved);
    }
    if (types_.has_value() && types_->wants_grad()) {
      ctx.stream.gemm(types_->grad(), types_of(ctx), d, {.transpose_a = true, .beta = 1});
    }
    if (positions_.has_value() && positions_->wants_grad()) {
      ctx.stream.embedding_backward(positions_->grad(), d, ctx.rows_in(Region::norm, ctx.batch.position));
    }
    const Tensor d_here = ctx.cross_back(embedding_leave, d);
    if (tokens_.wants_grad()) {
      ctx.stream.embedding_backward(tokens_.grad(), d_here, ctx.batch.token, first_row());
    }
    return {};
  }

 private:
  std::int64_t first_row() const {
    const Param& table = tokens_.param();
    return table.size[0] == table.spec.global[0] ? Stream::whole_table : table.offset[0];
  }
  // [T, types]: 1 at the token's type, in the compute type.
  static Tensor types_of(const StepContext& ctx) {
    const Tensor value = ctx.rows_in(Region::norm, ctx.batch.value);
    if (ctx.compute() == DType::f32) {
      return value;
    }
    const Tensor narrow = ctx.device().empty(ctx.compute(), value.shape());
    ctx.stream.cast(narrow, value);
    return narrow;
  }

  ParamRef tokens_;                            // [V_r, d]
  std::optional<ParamRef> positions_, types_;  // [positions, d], [types, d]
  std::unique_ptr<PartLayer> norm_;
};

class FinalNorm final : public Layer {
 public:
  FinalNorm(const Parameters& parameters, const Plan& plan) : norm_(make_norm(final_norm_stem, parameters, plan)) {}
  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override {
    return {norm_->forward(ctx, x.front(), saved)};
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    return {norm_->backward(ctx, dy.front(), saved)};
  }

 private:
  std::unique_ptr<PartLayer> norm_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding(const Parameters& parameters, const Plan& plan) {
  return std::make_unique<EncoderEmbedding>(parameters, plan);
}
std::unique_ptr<Layer> make_final_norm(const Parameters& parameters, const Plan& plan) {
  return std::make_unique<FinalNorm>(parameters, plan);
}

}  // namespace orthant::encoder
