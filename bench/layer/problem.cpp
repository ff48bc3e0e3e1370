#include "bench/layer/problem.h"

#include <algorithm>
#include <numeric>

namespace orthant::bench {

LayerProblem::LayerProblem(Device& device, Stream& stream, const LayerShape& shape, DType dtype, bool skewed)
    : device_(device), s_(stream), shape_(shape), dtype_(dtype), rows_(shape.tokens * shape.top_k) {
  const std::int64_t t = shape.tokens, d = shape.d, n = shape.n, e = shape.experts, k = shape.top_k;
  hidden_ = is_gated(shape.activation) ? 2 * n : n;
  config_ = {.experts = e,
             .top_k = k,
             .normalize_weights = shape.normalize_weights,
             .capacity_factor = shape.capacity_factor,
             .group_tokens = std::min(t, sequence_tokens)};
  require(t % config_.group_tokens == 0, "{} tokens are not whole sequences of {}", t, config_.group_tokens);
  x_ = normal(dtype, {t, d}, 1);
  dy_ = normal(dtype, {t, d}, 1);
  y_ = empty(dtype, {t, d});
  dx_ = empty(dtype, {t, d});
  router_ = normal(dtype, {e, d}, 0.02f);
  drouter_ = empty(DType::f32, {e, d});
  s_.fill(drouter_, 0);
  w_in_ = normal(dtype, {e, hidden_, d}, 0.02f);
  w_out_ = normal(dtype, {e, d, n}, 0.02f);
  dw_in_ = empty(DType::f32, {e, hidden_, d});
  dw_out_ = empty(DType::f32, {e, d, n});
  logits_ = empty(DType::f32, {t, e});
  dlogits_ = empty(DType::f32, {t, e});
  dlogits_narrow_ = empty(dtype, {t, e});
  expert_ = empty(DType::i32, {t, k});
  weight_ = empty(DType::f32, {t, k});
  dweight_ = empty(DType::f32, {t, k});
  lse_ = empty(DType::f32, {t});
  const std::int64_t groups = t / config_.group_tokens;
  chosen_ = empty(DType::i32, {groups, e});
  share_ = empty(DType::f64, {groups, e});
  valid_ = empty(DType::u8, {t});
  s_.fill(valid_, 1);
  token_ = empty(DType::i64, {t});
  std::vector<std::int64_t> token(t);
  std::iota(token.begin(), token.end(), 0);
  s_.upload(token_, token.data());
  count_ = empty(DType::i32, {e});
  dropped_ = empty(DType::i32, {e});
  balance_ = empty(DType::f64, {1});
  z_ = empty(DType::f64, {1});
  s_.fill(balance_, 0);
  s_.fill(z_, 0);
  dispatch_ = {.row = empty(DType::i32, {t, k}),
               .source = empty(DType::i32, {rows_, 1}),
               .offset = empty(DType::i32, {e + 1}),
               .weight = weight_};
  if (skewed) {
    // Every token has the same vector beside its own noise, of the same size: some experts like it, others do not.
    const Tensor ones = empty(dtype, {t, 1});
    s_.fill(ones, 1);
    s_.gemm(x_, ones, normal(dtype, {1, d}, 1), {.beta = 1});
  }
  h_ = empty(dtype, {rows_, hidden_});
  dh_ = empty(dtype, {rows_, hidden_});
  a_ = empty(dtype, {rows_, n});
  da_ = empty(dtype, {rows_, n});
  packed_ = empty(dtype, {rows_, d});
  out_ = empty(dtype, {rows_, d});
}

Tensor LayerProblem::normal(DType dtype, Shape shape, float deviation) {
  const std::int64_t columns = shape[shape.rank() - 1];
  const Tensor wide = empty(DType::f32, shape);
  s_.init_normal(wide.view({shape.elements() / columns, columns}), {.seed = 1, .site = ++drawn_}, deviation,
                 {.global_columns = columns});
  if (dtype == DType::f32) {
    return wide;
  }
  const Tensor narrow = empty(dtype, shape);
  s_.cast(narrow, wide);
  return narrow;
}

void LayerProblem::route() {
  s_.gemm(logits_, x_, router_, {.transpose_b = true});
  s_.gate(expert_, weight_, lse_, chosen_, share_, logits_, valid_, token_, key_, config_);
  s_.gate_losses(balance_, z_, chosen_, share_, lse_, config_);
  s_.dispatch_plan(dispatch_.row, dispatch_.source, count_, dropped_, dispatch_.offset, expert_, weight_, valid_,
                   config_);
}

void LayerProblem::unroute() {
  s_.gate_backward(dlogits_, dweight_, expert_, lse_, chosen_, logits_, valid_, 1e-6f, 1e-7f, config_);
  const Tensor& d = dtype_ == DType::f32 ? dlogits_ : dlogits_narrow_;
  if (dtype_ != DType::f32) {
    s_.cast(dlogits_narrow_, dlogits_);
  }
  s_.gemm(dx_, d, router_, {.beta = 1});
  s_.gemm(drouter_, d, x_, {.transpose_a = true, .beta = 1});
}

void LayerProblem::forward() {
  route();
  s_.expert_ffn(y_, h_, x_, w_in_, w_out_, dispatch_, shape_.activation);
}

void LayerProblem::backward() {
  s_.expert_ffn_backward(dx_, dweight_, dw_in_, dw_out_, dy_, x_, h_, w_in_, w_out_, dispatch_, shape_.activation, 0);
  unroute();
}

double LayerProblem::forward_flops() const {
  const double inner = static_cast<double>(hidden_ + shape_.n);
  return 2 * static_cast<double>(rows_) * static_cast<double>(shape_.d) * inner;
}

double LayerProblem::load_max_over_mean() {
  route();
  std::vector<std::int32_t> count(shape_.experts);
  s_.download(count.data(), count_);
  const double all = std::accumulate(count.begin(), count.end(), 0.0);
  return *std::max_element(count.begin(), count.end()) * static_cast<double>(shape_.experts) / std::max(all, 1.0);
}

std::vector<Step> LayerProblem::steps() {
  const double f = static_cast<double>(size_of(dtype_)), wide = 4;
  const double t = static_cast<double>(shape_.tokens), d = static_cast<double>(shape_.d);
  const double n = static_cast<double>(shape_.n), e = static_cast<double>(shape_.experts);
  const double r = static_cast<double>(rows_), hidden = static_cast<double>(hidden_), index = 4;
  const double in_flops = 2 * r * d * hidden, out_flops = 2 * r * d * n;
  const double rows_in = f * (r * d + r * hidden), rows_out = f * (r * d + r * n);
  const double w_in = e * hidden * d, w_out = e * d * n;
  const Activation kind = shape_.activation;
  const Tensor& source = dispatch_.source;
  return {
      {"router product", [this] { s_.gemm(logits_, x_, router_, {.transpose_b = true}); }, 2 * t * d * e,
       f * (t * d + e * d) + wide * t * e},
      {"gate", [this] { s_.gate(expert_, weight_, lse_, chosen_, share_, logits_, valid_, token_, key_, config_); }, 0,
       wide * t * e + (index + wide) * r},
      {"dispatch plan",
       [this] {
         s_.dispatch_plan(dispatch_.row, dispatch_.source, count_, dropped_, dispatch_.offset, expert_, weight_, valid_,
                          config_);
       },
       0, 3 * index * r},
      {"pack", [=, this] { s_.pack(packed_, x_, dispatch_.row, source); }, 0, f * (t * d + r * d) + index * r},
      {"experts in", [this] { s_.grouped_gemm(h_, packed_, w_in_, dispatch_.offset, {.transpose_b = true}); }, in_flops,
       rows_in + f * w_in},
      {"activation", [=, this] { s_.activation(a_, h_, kind); }, 0, f * (r * hidden + r * n)},
      {"experts out", [this] { s_.grouped_gemm(out_, a_, w_out_, dispatch_.offset, {.transpose_b = true}); }, out_flops,
       rows_out + f * w_out},
      {"combine", [this] { s_.combine(y_, out_, dispatch_.row, weight_, false); }, 0,
       f * (t * d + r * d) + (index + wide) * r},
      {"experts out, dX", [this] { s_.grouped_gemm(da_, out_, w_out_, dispatch_.offset, {}); }, out_flops,
       rows_out + f * w_out},
      {"activation backward",
       [=, this] { s_.weighted_activation_backward(dh_, a_, dweight_, da_, h_, weight_, source, kind); }, 0,
       f * (2 * r * hidden + 2 * r * n) + 2 * wide * r},
      {"experts out, dW", [this] { s_.grouped_gemm_tn(dw_out_, out_, a_, dispatch_.offset, 0); }, out_flops,
       rows_out + wide * w_out},
      {"experts in, dW", [this] { s_.grouped_gemm_tn(dw_in_, dh_, packed_, dispatch_.offset, 0); }, in_flops,
       rows_in + wide * w_in},
      {"experts in, dX", [this] { s_.grouped_gemm(packed_, dh_, w_in_, dispatch_.offset, {}); }, in_flops,
       rows_in + f * w_in},
      {"pack backward", [this] { s_.pack_backward(dx_, packed_, dispatch_.row, false); }, 0,
       f * (t * d + r * d) + index * r},
      {"gate backward",
       [this] { s_.gate_backward(dlogits_, dweight_, expert_, lse_, chosen_, logits_, valid_, 1e-6f, 1e-7f, config_); },
       0, 2 * wide * t * e + (index + wide) * r},
  };
}

}  // namespace orthant::bench
