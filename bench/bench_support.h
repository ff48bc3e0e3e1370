// What the benchmarks of operations share: tensors on the CPU device, and the machine's measured ceilings.
#pragma once

#include <benchmark/benchmark.h>
#include <orthant/device.h>
#include <orthant/ops.h>
#include <orthant/random.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

namespace orthant::bench {

inline constexpr int threads = 2;

class Machine {
 public:
  Machine() : device_(make_cpu_device(threads)), stream_(device_->make_main_stream()) {}

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Tensor empty(DType dtype, Shape shape) { return device_->empty(dtype, shape); }
  // Normal numbers, a few thousand different ones again and again.
  Tensor normal(DType dtype, Shape shape, float deviation) {
    std::vector<float> x(shape.elements());
    constexpr std::size_t different = 4093;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = i < different ? deviation * orthant::normal({.seed = 1}, i) : x[i - different];
    }
    const Tensor y = empty(dtype, shape);
    stream_->cast(y, values(DType::f32, shape, x));
    return y;
  }
  template <class T>
  Tensor values(DType dtype, Shape shape, const std::vector<T>& from) {
    const Tensor y = empty(dtype, shape);
    stream_->upload(y, from.data());
    return y;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

// The shortest of several runs, in seconds: ceilings, not averages.
template <class F>
double shortest(F&& fn, int runs = 7) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// Bytes read and written per second by copying 128 MiB with both threads.
inline double copy_rate() {
  static const double rate = [] {
    Machine m;
    const std::int64_t n = 32 << 20;
    const Tensor from = m.empty(DType::f32, {n}), to = m.empty(DType::f32, {n});
    m.stream().fill(from, 1);
    m.stream().fill(to, 0);
    return 8.0 * static_cast<double>(n) / shortest([&] { m.stream().copy(to, from); });
  }();
  return rate;
}

// FLOP/s of one large product (fp32, or bf16 where `dtype` says) as the library does it.
inline double gemm_rate(DType dtype) {
  static const auto measure = [](DType type) {
    Machine m;
    const Tensor a = m.normal(type, {1024, 512}, 1), b = m.normal(type, {512, 2048}, 1),
                 c = m.empty(type, {1024, 2048});
    return 2.0 * 1024 * 512 * 2048 / shortest([&] { m.stream().gemm(c, a, b, {}); });
  };
  static const double f32 = measure(DType::f32), bf16 = measure(DType::bf16);
  return dtype == DType::f32 ? f32 : bf16;
}

// Runs fn for each iteration and reports amount per second as `name` (B/s, FLOP/s) and its share of `ceiling`.
template <class F>
void measure_rate(benchmark::State& state, const char* name, double amount, double ceiling, F&& fn) {
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) {
    fn();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double rate = amount * static_cast<double>(state.iterations()) / seconds;
  state.counters[name] = benchmark::Counter(rate, benchmark::Counter::kDefaults, benchmark::Counter::kIs1000);
  state.counters["share"] = rate / ceiling;
}

}  // namespace orthant::bench
