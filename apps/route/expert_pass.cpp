#include "apps/route/expert_pass.h"

#include <orthant/error.h>

#include <iterator>
#include <numeric>

namespace orthant {

ExpertPass::ExpertPass(const Settings& settings, const ExpertLoad& load, Device& device, Stream& stream)
    : device_(device),
      s_(stream),
      kind_(settings.model.activation),
      biases_(settings.moe.expert_bias),
      travelled_(load.tokens == 0),
      dtype_(settings.run.dtype == ComputeType::fp32 ? DType::f32 : DType::bf16) {
  const auto experts = static_cast<std::int64_t>(load.rows.size());
  const std::int64_t all = std::accumulate(load.rows.begin(), load.rows.end(), std::int64_t{0});
  const std::int64_t d = settings.model.d_model, f = d_expert_of(settings), n = is_gated(kind_) ? 2 * f : f;
  // Rows are choices of tokens, spread evenly over them.
  const std::int64_t top_k = load.tokens > 0 ? load.top_k : 1, tokens = load.tokens > 0 ? load.tokens : all;
  require(all <= tokens * top_k, "{} rows are more than the choices of {} tokens", all, tokens);
  std::vector<std::int32_t> offset = {0}, row(static_cast<std::size_t>(tokens * top_k), -1), source;
  std::partial_sum(load.rows.begin(), load.rows.end(), std::back_inserter(offset));
  for (std::int64_t r = 0; r < all; ++r) {
    source.push_back(static_cast<std::int32_t>(r * tokens * top_k / all));
    row[static_cast<std::size_t>(source.back())] = static_cast<std::int32_t>(r);
  }
  to_.row = device_.empty(DType::i32, {tokens, top_k});
  to_.source = device_.empty(DType::i32, {all, 1});
  to_.offset = device_.empty(DType::i32, {experts + 1});
  s_.upload(to_.row, row.data());
  s_.upload(to_.source, source.data());
  s_.upload(to_.offset, offset.data());
  s_.synchronize();  // before they go
  to_.weight = filled(DType::f32, {tokens, top_k});
  x_ = filled(dtype_, {tokens, d});
  y_ = filled(dtype_, {tokens, d});
  h_ = filled(dtype_, {all, n});
  w_in_ = filled(dtype_, {experts, n, d});
  w_out_ = filled(dtype_, {experts, d, f});
  dw_in_ = filled(DType::f32, {experts, n, d});
  dw_out_ = filled(DType::f32, {experts, d, f});
  dx_ = filled(dtype_, {tokens, d});
  dweight_ = filled(DType::f32, {tokens, top_k});
  if (biases_ || travelled_) {
    rows_ = filled(dtype_, {all, d});
    a_ = filled(dtype_, {all, f});
    dh_ = filled(dtype_, {all, n});
    da_ = filled(dtype_, {all, f});
  }
  if (biases_) {
    b_in_ = filled(dtype_, {experts, 1, n});
    b_out_ = filled(dtype_, {experts, 1, d});
    db_in_ = filled(DType::f32, {experts, 1, n});
    db_out_ = filled(DType::f32, {experts, 1, d});
    ones_ = filled(dtype_, {all, 1});
    of_rows_ = filled(DType::f32, {all, 1});
  }
}

void ExpertPass::forward() {
  if (!biases_ && !travelled_) {
    s_.expert_ffn(y_, h_, x_, w_in_, w_out_, to_, kind_);
    return;
  }
  const Tensor& in = travelled_ ? x_ : rows_;
  const Tensor& out = travelled_ ? y_ : rows_;
  if (!travelled_) {
    s_.pack(in, x_, to_.row, to_.source);
  }
  s_.grouped_gemm(h_, in, w_in_, to_.offset, {.transpose_b = true});
  if (biases_) {
    s_.grouped_gemm(h_, ones_, b_in_, to_.offset, {.beta = 1});
  }
  s_.activation(a_, h_, kind_);
  s_.grouped_gemm(out, a_, w_out_, to_.offset, {.transpose_b = true});
  if (biases_) {
    s_.grouped_gemm(out, ones_, b_out_, to_.offset, {.beta = 1});
  }
  if (!travelled_) {
    s_.combine(y_, out, to_.row, to_.weight, false);
  }
}

void ExpertPass::backward() {
  if (!biases_ && !travelled_) {
    s_.expert_ffn_backward(dx_, dweight_, dw_in_, dw_out_, y_, x_, h_, w_in_, w_out_, to_, kind_, 0);
    return;
  }
  const Tensor& dy = travelled_ ? y_ : rows_;
  const Tensor& in = travelled_ ? x_ : rows_;
  const Tensor& dx = travelled_ ? dx_ : rows_;
  if (!travelled_) {
    s_.pack(dy, y_, to_.row, to_.source);
  }
  s_.grouped_gemm(da_, dy, w_out_, to_.offset, {});
  s_.weighted_activation_backward(dh_, a_, dweight_, da_, h_, to_.weight, travelled_ ? Tensor() : to_.source, kind_);
  s_.grouped_gemm_tn(dw_out_, dy, a_, to_.offset, 0);
  if (biases_) {
    s_.grouped_gemm(of_rows_, dy, b_out_, to_.offset, {.transpose_b = true});
    s_.grouped_gemm_tn(db_in_, ones_, dh_, to_.offset, 1);
    s_.grouped_gemm_tn(db_out_, ones_, dy, to_.offset, 1);
  }
  if (!travelled_) {
    s_.pack(in, x_, to_.row, to_.source);
  }
  s_.grouped_gemm_tn(dw_in_, dh_, in, to_.offset, 0);
  s_.grouped_gemm(dx, dh_, w_in_, to_.offset, {});
  if (!travelled_) {
    s_.pack_backward(dx_, dx, to_.row, false);
  }
}

Tensor ExpertPass::filled(DType type, const Shape& shape) {
  Tensor t = device_.empty(type, shape);
  s_.fill(t, 0.01);
  return t;
}

}  // namespace orthant
