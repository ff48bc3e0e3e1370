#include "core/route/step_time.h"

#include <algorithm>
#include <chrono>
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
      device_(make_device(settings.run.device, static_cast<int>(settings.run.threads))),
      stream_(device_->make_main_stream()) {}

double ExpertTimer::seconds(const std::vector<std::int64_t>& rows, bool recomputed) {
  const auto [found, is_new] = known_.try_emplace({rows, recomputed}, 0.0);
  if (is_new) {
    found->second = measure(rows, recomputed);
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

double ExpertTimer::measure(const std::vector<std::int64_t>& rows, bool recomputed) {
  const DType dtype = settings_.run.dtype == ComputeType::fp32 ? DType::f32 : DType::bf16;
  const auto experts = static_cast<std::int64_t>(rows.size());
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const std::int64_t d = settings_.model.d_model, f = d_expert_of(settings_);
  const std::int64_t n = settings_.model.activation == Activation::swiglu ? 2 * f : f;
  if (experts == 0) {
    return 0;
  }
  const auto filled = [&](DType type, const Shape& shape) {
    Tensor t = device_->empty(type, shape);
    stream_->fill(t, 0.01);
    return t;
  };
  // Each row is a token's one choice.
  std::vector<std::int32_t> offset = {0}, place(static_cast<std::size_t>(all));
  std::partial_sum(rows.begin(), rows.end(), std::back_inserter(offset));
  std::iota(place.begin(), place.end(), 0);
  Dispatch to;
  to.row = device_->empty(DType::i32, {all, 1});
  to.source = device_->empty(DType::i32, {all, 1});
  to.offset = device_->empty(DType::i32, {experts + 1});
  stream_->upload(to.row, place.data());
  stream_->upload(to.source, place.data());
  stream_->upload(to.offset, offset.data());
  to.weight = filled(DType::f32, {all, 1});
  const Tensor x = filled(dtype, {all, d}), y = filled(dtype, {all, d}), h = filled(dtype, {all, n});
  const Tensor w_in = filled(dtype, {experts, n, d}), w_out = filled(dtype, {experts, d, f});
  const Tensor dw_in = filled(DType::f32, {experts, n, d}), dw_out = filled(DType::f32, {experts, d, f});
  const Tensor dx = filled(dtype, {all, d}), dweight = filled(DType::f32, {all, 1});
  const Activation kind = settings_.model.activation;
  double best = 0, spent = 0;
  for (int i = 0; i <= fewest_repetitions || spent < least_seconds; ++i) {
    const double seconds = seconds_of([&] {
      for (int pass = recomputed ? 0 : 1; pass < 2; ++pass) {
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
        const double seconds = timer.seconds(rows, layout.recomputed[batch]);
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
