#include "core/route/step_time.h"

#include <orthant/error.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

namespace orthant {
namespace {

// Other work on the machine only adds time: the fastest of many is wanted.
constexpr int fewest_repetitions = 4;
constexpr double least_seconds = 0.3;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

// Experts::forward_here and backward_here (experts/experts.h), with every number 0.01: fused, or, where experts have
// biases, operation by operation.
class ExpertTimer::Work {
 public:
  Work(const Settings& settings, const Load& load, Device& device, Stream& stream)
      : device_(device),
        s_(stream),
        kind_(settings.model.activation),
        biases_(settings.moe.expert_bias),
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
    if (biases_) {
      b_in_ = filled(dtype_, {experts, 1, n});
      b_out_ = filled(dtype_, {experts, 1, d});
      db_in_ = filled(DType::f32, {experts, 1, n});
      db_out_ = filled(DType::f32, {experts, 1, d});
      rows_ = filled(dtype_, {all, d});
      a_ = filled(dtype_, {all, f});
      dh_ = filled(dtype_, {all, n});
      da_ = filled(dtype_, {all, f});
      ones_ = filled(dtype_, {all, 1});
      of_rows_ = filled(DType::f32, {all, 1});
    }
  }

  void forward() {
    if (!biases_) {
      s_.expert_ffn(y_, h_, x_, w_in_, w_out_, to_, kind_);
      return;
    }
    s_.pack(rows_, x_, to_.row, to_.source);
    s_.grouped_gemm(h_, rows_, w_in_, to_.offset, {.transpose_b = true});
    s_.grouped_gemm(h_, ones_, b_in_, to_.offset, {.beta = 1});
    s_.activation(a_, h_, kind_);
    s_.grouped_gemm(rows_, a_, w_out_, to_.offset, {.transpose_b = true});
    s_.grouped_gemm(rows_, ones_, b_out_, to_.offset, {.beta = 1});
    s_.combine(y_, rows_, to_.row, to_.weight, false);
  }

  void backward() {
    if (!biases_) {
      s_.expert_ffn_backward(dx_, dweight_, dw_in_, dw_out_, y_, x_, h_, w_in_, w_out_, to_, kind_, 0);
      return;
    }
    s_.pack(rows_, y_, to_.row, to_.source);
    s_.grouped_gemm(da_, rows_, w_out_, to_.offset, {});
    s_.weighted_activation_backward(dh_, a_, dweight_, da_, h_, to_.weight, to_.source, kind_);
    s_.grouped_gemm_tn(dw_out_, rows_, a_, to_.offset, 0);
    s_.grouped_gemm(of_rows_, rows_, b_out_, to_.offset, {.transpose_b = true});
    s_.grouped_gemm_tn(db_in_, ones_, dh_, to_.offset, 1);
    s_.grouped_gemm_tn(db_out_, ones_, rows_, to_.offset, 1);
    s_.pack(rows_, x_, to_.row, to_.source);
    s_.grouped_gemm_tn(dw_in_, dh_, rows_, to_.offset, 0);
    s_.grouped_gemm(rows_, dh_, w_in_, to_.offset, {});
    s_.pack_backward(dx_, rows_, to_.row, false);
  }

 private:
  Tensor filled(DType type, const Shape& shape) {
    Tensor t = device_.empty(type, shape);
    s_.fill(t, 0.01);
    return t;
  }

  Device& device_;
  Stream& s_;
  const Activation kind_;
  const bool biases_;
  const DType dtype_;
  Dispatch to_;
  Tensor x_, y_, h_, w_in_, w_out_, dw_in_, dw_out_, dx_, dweight_;
  Tensor b_in_, b_out_, db_in_, db_out_, rows_, a_, dh_, da_, ones_, of_rows_;  // of experts with biases
};

ExpertTimer::ExpertTimer(const Settings& settings, std::unique_ptr<Device> device, std::unique_ptr<Stream> stream)
    : settings_(settings), device_(std::move(device)), stream_(std::move(stream)) {}

ExpertTimer::ExpertTimer(const Settings& settings)
    : settings_(settings),
      device_(make_device(settings.run.device, static_cast<int>(settings.run.threads))),
      stream_(device_->make_main_stream()) {}

double ExpertTimer::seconds(const Load& load) {
  const auto [found, is_new] = known_.try_emplace(load, 0.0);
  if (is_new) {
    found->second = measure(load);
  }
  return found->second;
}

double ExpertTimer::copy_rate() {
  const Tensor from = device_->empty(DType::f32, {4 << 20}), to = device_->empty(DType::f32, {4 << 20});
  stream_->fill(from, 1);
  double best = 0;
  for (int i = 0; i < fewest_repetitions; ++i) {
    const double seconds = seconds_of([&] {
      stream_->copy(to, from);
      stream_->synchronize();
    });
    best = std::max(best, static_cast<double>(from.bytes()) / std::max(seconds, 1e-9));
  }
  return best;
}

double ExpertTimer::measure(const Load& load) {
  if (load.rows.empty()) {
    return 0;
  }
  Work work(settings_, load, *device_, *stream_);
  double best = 0, spent = 0;
  for (int i = 0; i <= fewest_repetitions || spent < least_seconds; ++i) {
    const double seconds = seconds_of([&] {
      for (int pass = load.recomputed ? 0 : 1; pass < 2; ++pass) {
        work.forward();
      }
      work.backward();
      stream_->synchronize();
    });
    best = i <= 1 ? seconds : std::min(best, seconds);  // the first finds cold memory
    spent += seconds;
  }
  return best;
}

RoutedWork routed_work(const std::vector<Travel>& layers, const ExpertLayout& layout, const Rates& rates, int slots,
                       ExpertTimer& timer) {
  RoutedWork work{.slots = slots};
  for (const Travel& layer : layers) {
    for (std::size_t batch = 0; batch < layer.rows.size(); ++batch) {
      double slowest = 0, sum = 0;
      for (const std::vector<std::int64_t>& rows : layer.rows[batch]) {
        const double seconds = timer.seconds({.rows = rows,
                                              .tokens = layout.expert_ranks == 1 ? layer.tokens : 0,
                                              .top_k = layer.top_k,
                                              .recomputed = layout.recomputed[batch]});
        slowest = std::max(slowest, seconds);
        sum += seconds;
      }
      work.experts += std::max(slowest, sum / slots);
    }
    work.exchange += static_cast<double>(layer.bytes_inside) / rates.inside / slots +
                     static_cast<double>(layer.bytes_between) / rates.between / slots;
  }
  return work;
}

double predicted_seconds(double measured, const RoutedWork& old_work, const RoutedWork& new_work) {
  const double rest = std::max(0.0, measured - old_work.experts - old_work.exchange);
  return rest * old_work.slots / new_work.slots + new_work.experts + new_work.exchange;
}

}  // namespace orthant
