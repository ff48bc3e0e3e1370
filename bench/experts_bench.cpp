// The experts' products of the small Mixtral: width 256, SwiGLU experts of width 512, two threads.
//
// Arguments: E experts, rows of all experts together, skew (0: equal rows, 1: half of all rows on one expert).
// FLOP/s counts 2 m n k; `share` is that over this machine's rate for one large product of the same dtype by the
// library (`Stream::gemm`), measured first.
#include "bench/bench_support.h"

namespace orthant::bench {
namespace {

constexpr std::int64_t d = 256, f = 512;

struct Experts {
  Machine m;
  Tensor offset, x, h, a, y, w13, w2, dw13, dw2;
  double flops;  // of the forward products

  Experts(DType dtype, std::int64_t experts, std::int64_t rows, bool skewed) {
    std::vector<std::int32_t> first{0};
    for (std::int64_t e = 0; e < experts; ++e) {
      first.push_back(
          static_cast<std::int32_t>(!skewed ? rows * (e + 1) / experts : rows / 2 + rows / 2 * e / (experts - 1)));
    }
    offset = m.values(DType::i32, {experts + 1}, first);
    x = m.normal(dtype, {rows, d}, 1);
    h = m.normal(dtype, {rows, 2 * f}, 1);
    a = m.normal(dtype, {rows, f}, 1);
    y = m.normal(dtype, {rows, d}, 1);
    w13 = m.normal(dtype, {experts, 2 * f, d}, 0.02f);
    w2 = m.normal(dtype, {experts, d, f}, 0.02f);
    dw13 = m.empty(DType::f32, {experts, 2 * f, d});
    dw2 = m.empty(DType::f32, {experts, d, f});
    flops = 6.0 * static_cast<double>(rows * d * f);
  }
  void forward() {
    m.stream().grouped_gemm(h, x, w13, offset, {.transpose_b = true});
    m.stream().activation(a, h, Activation::swiglu);
    m.stream().grouped_gemm(y, a, w2, offset, {.transpose_b = true});
  }
  void backward_inputs() {
    m.stream().grouped_gemm(a, y, w2, offset, {});
    m.stream().grouped_gemm(x, h, w13, offset, {});
  }
  void backward_weights() {
    m.stream().grouped_gemm_tn(dw2, y, a, offset, 0);
    m.stream().grouped_gemm_tn(dw13, h, x, offset, 0);
  }
};

template <class F>
void measure(benchmark::State& state, DType dtype, F&& fn) {
  const double ceiling = gemm_rate(dtype);
  Experts experts(dtype, state.range(0), state.range(1), state.range(2) != 0);
  fn(experts);
  measure_rate(state, "FLOP/s", experts.flops, ceiling, [&] { fn(experts); });
}

void forward(benchmark::State& state, DType dtype) {
  measure(state, dtype, [](Experts& e) { e.forward(); });
}
void backward_inputs(benchmark::State& state, DType dtype) {
  measure(state, dtype, [](Experts& e) { e.backward_inputs(); });
}
void backward_weights(benchmark::State& state, DType dtype) {
  measure(state, dtype, [](Experts& e) { e.backward_weights(); });
}

// 64 rows an expert and more, then the whole layer's 8192 rows.
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"E", "rows", "skew"})
      ->Args({8, 512, 0})
      ->Args({8, 8192, 0})
      ->Args({8, 8192, 1})
      ->Args({64, 4096, 0})
      ->Args({64, 8192, 0})
      ->Args({64, 8192, 1})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(forward, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(forward, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(backward_inputs, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(backward_inputs, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(backward_weights, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(backward_weights, bf16, DType::bf16)->Apply(shapes);

}  // namespace
}  // namespace orthant::bench

BENCHMARK_MAIN();
