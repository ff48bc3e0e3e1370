#include "core/layers/output_rows.h"

#include <orthant/settings.h>

#include <span>
#include <utility>

#include "core/layers/head_chunks.h"

namespace orthant {

MatrixRows::MatrixRows(const StepContext& ctx, const OutputMatrix& matrix, Tensor n, Group* sequences)
    : ctx_(ctx),
      matrix_(matrix),
      n_(std::move(n)),
      sequences_(sequences),
      chunk_(tokens_a_chunk(ctx.settings().model.vocab_size, ctx.device().asynchronous())) {}

void MatrixRows::sum_over_sequences(const Tensor& t) {
  if (sequences_ != nullptr) {
    sequences_->all_reduce(t, ReduceOp::sum, ctx_.stream);
    return;
  }
  require(ctx_.plan.axes_of(Dim::position, Region::head).empty(),
          "an objective sums over sequences, and its over_sequences() says that it does not");
}

void MatrixRows::learn(std::int64_t begin, const Tensor& dlogits) {
  if (!ctx_.training) {
    return;
  }
  require(begin == learned_, "an objective learns from rows {} on, expected {}: each row once, in order", begin,
          learned_);
  if (!dn_.defined()) {
    dn_ = ctx_.device().empty(n_.dtype(), n_.shape());
  }
  matrix_.learn(ctx_, dn_, n_, begin, dlogits);
  learned_ += dlogits.dim(0);
}

Tensor MatrixRows::gradient(const std::string& objective) const {
  require(!ctx_.training || learned_ == tokens(), "objective '{}' has learned from {} of {} rows", objective, learned_,
          tokens());
  return dn_;
}

Tensor run_objective(const StepContext& ctx, std::size_t number, MatrixRows& rows, int depth) {
  const ObjectiveStep& of = ctx.sums.objectives.at(number);
  const bool read = ctx.training || of.objective->reference(ctx.settings()).measures;
  const ObjectiveInput in{
      .own = ctx.batch.of_objectives.at(number).get(),
      .counts = ctx.training ? std::span<const std::int64_t>(of.counts) : std::span<const std::int64_t>(),
      .sums = of.sums,
      .teacher = read ? ctx.sums.teacher : nullptr,
      .depth = depth};
  of.objective->run(in, rows, ctx);
  return rows.gradient(of.name);
}

}  // namespace orthant
