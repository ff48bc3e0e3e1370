#include "core/route/step_time.h"

#include <orthant/error.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <numeric>

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

ExpertTimer::ExpertTimer(const Settings& settings)
    : settings_(settings),
      device_(make_device(settings.run.device, static_cast<int>(settings.run.threads), settings.run.deterministic)),
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
  const std::vector<std::int64_t>& rows = load.rows;
  const DType dtype = settings_.run.dtype == ComputeType::fp32 ? DType::f32 : DType::bf16;
  const auto experts = static_cast<std::int64_t>(rows.size());
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const std::int64_t d = settings_.model.d_model, f = d_expert_of(settings_);
  const std::int64_t n = is_gated(settings_.model.activation) ? 2 * f : f;
  if (experts == 0) {
    return 0;
  }
  const auto filled = [&](DType type, const Shape& shape) {
    Tensor t = device_->empty(type, shape);
    stream_->fill(t, 0.01);
    return t;
  };
  // Rows are choices of tokens, spread evenly over them.
  const std::int64_t top_k = load.tokens > 0 ? load.top_k : 1, tokens = load.tokens > 0 ? load.tokens : all;
  require(all <= tokens * top_k, "{} rows are more than the choices of {} tokens", all, tokens);
  std::vector<std::int32_t> offset = {0}, row(static_cast<std::size_t>(tokens * top_k), -1), source;
  std::partial_sum(rows.begin(), rows.end(), std::back_inserter(offset));
  for (std::int64_t r = 0; r < all; ++r) {
    source.push_back(static_cast<std::int32_t>(r * tokens * top_k / all));
    row[static_cast<std::size_t>(source.back())] = static_cast<std::int32_t>(r);
  }
  Dispatch to;
  to.row = device_->empty(DType::i32, {tokens, top_k});
  to.source = device_->empty(DType::i32, {all, 1});
  to.offset = device_->empty(DType::i32, {experts + 1});
  stream_->upload(to.row, row.data());
  stream_->upload(to.source, source.data());
  stream_->upload(to.offset, offset.data());
  to.weight = filled(DType::f32, {tokens, top_k});
  const Tensor x = filled(dtype, {tokens, d}), y = filled(dtype, {tokens, d}), h = filled(dtype, {all, n});
  const Tensor w_in = filled(dtype, {experts, n, d}), w_out = filled(dtype, {experts, d, f});
  const Tensor dw_in = filled(DType::f32, {experts, n, d}), dw_out = filled(DType::f32, {experts, d, f});
  const Tensor dx = filled(dtype, {tokens, d}), dweight = filled(DType::f32, {tokens, top_k});
  const Activation kind = settings_.model.activation;
  double best = 0, spent = 0;
  for (int i = 0; i <= fewest_repetitions || spent < least_seconds; ++i) {
    const double seconds = seconds_of([&] {
      for (int pass = load.recomputed ? 0 : 1; pass < 2; ++pass) {
        stream_->expert_ffn(y, h, x, w_in, w_out, to, kind);
      }
      stream_->expert_ffn_backward(dx, dweight, dw_in, dw_out, y, x, h, w_in, w_out, to, kind, 0);
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
