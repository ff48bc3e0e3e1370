// Dense CPU operations: FLOP/s or bytes/s of each, to be held against the machine's floors.
// ops_bench [--benchmark_filter=Gemm]; threads: ORTHANT_BENCH_THREADS, default 1.
#include <benchmark/benchmark.h>
#include <orthant/device.h>
#include <orthant/ops.h>

#include <cstdlib>
#include <string>

#include "core/device/cpu/gemm.h"
#include "core/device/cpu/parallel.h"

namespace orthant {
namespace {

int bench_threads() {
  const char* text = std::getenv("ORTHANT_BENCH_THREADS");
  return text == nullptr ? 1 : std::atoi(text);
}

DType dtype_of(const benchmark::State& state, int argument) {
  return state.range(argument) == 0 ? DType::f32 : DType::bf16;
}

struct Bench {
  std::unique_ptr<Device> device = make_cpu_device(bench_threads());
  std::unique_ptr<Stream> stream = device->make_main_stream();

  Tensor random(DType dtype, Shape shape) {
    const Tensor t = device->empty(dtype, shape), normal = device->empty(DType::f32, {1, shape.elements()});
    stream->init_normal(normal, {1, Purpose::test, 0, 0}, 1.0f, {0, 0, shape.elements()});
    stream->cast(t, normal);
    return t;
  }
  Tensor filled(DType dtype, Shape shape, double value) {
    const Tensor t = device->empty(dtype, shape);
    stream->fill(t, value);
    return t;
  }
};

void rate(benchmark::State& state, const char* name, double per_iteration) {
  state.counters[name] = benchmark::Counter(per_iteration * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate, benchmark::Counter::OneK::kIs1000);
}

// The ceiling of Gemm: cpu_gemm on buffers that are ready.
void RawSgemm(benchmark::State& state) {
  Bench b;
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const Tensor x = b.random(DType::f32, {m, k}), w = b.random(DType::f32, {k, n}), y = b.random(DType::f32, {m, n});
  const ThreadLimit limit(bench_threads());
  for (auto step : state) {
    cpu_gemm(false, false, m, n, k, x.as<float>(), k, w.as<float>(), n, 0, y.as<float>(), n);
  }
  rate(state, "FLOP/s", 2.0 * static_cast<double>(m * n * k));
}
BENCHMARK(RawSgemm)->Args({1024, 2048, 512})->Args({4096, 512, 256})->UseRealTime();

void GemmOperation(benchmark::State& state) {
  Bench b;
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const DType dtype = dtype_of(state, 3);
  const Tensor x = b.random(dtype, {m, k}), w = b.random(dtype, {n, k}), y = b.random(dtype, {m, n});
  for (auto step : state) {
    b.stream->gemm(y, x, w, {.transpose_a = false, .transpose_b = true});
  }
  rate(state, "FLOP/s", 2.0 * static_cast<double>(m * n * k));
}
BENCHMARK(GemmOperation)
    ->ArgsProduct({{1024}, {2048}, {512}, {0, 1}})
    ->ArgsProduct({{4096}, {512}, {256}, {0, 1}})
    ->UseRealTime();

void Norm(benchmark::State& state) {
  Bench b;
  const std::int64_t rows = 4096, d = state.range(0);
  const DType dtype = dtype_of(state, 1);
  const Tensor x = b.random(dtype, {rows, d}), y = b.random(dtype, {rows, d}), w = b.filled(DType::f32, {d}, 1);
  const Tensor stats = b.device->empty(DType::f32, {rows, 2});
  for (auto step : state) {
    b.stream->norm(y, stats, x, w, {}, NormKind::rmsnorm, 1e-5f);
  }
  rate(state, "bytes/s", 2.0 * static_cast<double>(x.bytes()));
}
BENCHMARK(Norm)->ArgsProduct({{256, 1024}, {0, 1}})->UseRealTime();

void NormBackward(benchmark::State& state) {
  Bench b;
  const std::int64_t rows = 4096, d = state.range(0);
  const DType dtype = dtype_of(state, 1);
  const Tensor x = b.random(dtype, {rows, d}), dy = b.random(dtype, {rows, d}), w = b.filled(DType::f32, {d}, 1);
  const Tensor dx = b.filled(dtype, {rows, d}, 0), dw = b.filled(DType::f32, {d}, 0);
  const Tensor stats = b.filled(DType::f32, {rows, 2}, 1);
  for (auto step : state) {
    b.stream->norm_backward(dx, dw, {}, dy, x, stats, w, NormKind::rmsnorm);
  }
  rate(state, "bytes/s", 4.0 * static_cast<double>(x.bytes()));
}
BENCHMARK(NormBackward)->ArgsProduct({{256, 1024}, {0, 1}})->UseRealTime();

// Rows of an expert FFN of width 512: 3 widths are read or written forward, 7 backward.
void SwigluOperation(benchmark::State& state) {
  Bench b;
  const std::int64_t rows = 4096, f = 512;
  const DType dtype = dtype_of(state, 0);
  const Tensor h = b.random(dtype, {rows, 2 * f}), a = b.random(dtype, {rows, f});
  for (auto step : state) {
    b.stream->activation(a, h, Activation::swiglu);
  }
  rate(state, "bytes/s", 3.0 * static_cast<double>(a.bytes()));
}
BENCHMARK(SwigluOperation)->Arg(0)->Arg(1)->UseRealTime();

void WeightedSwigluBackward(benchmark::State& state) {
  Bench b;
  const std::int64_t rows = 4096, f = 512;
  const DType dtype = dtype_of(state, 0);
  const Tensor h = b.random(dtype, {rows, 2 * f}), da = b.random(dtype, {rows, f});
  const Tensor dh = b.filled(dtype, {rows, 2 * f}, 0), a = b.filled(dtype, {rows, f}, 0);
  const Tensor weight = b.filled(DType::f32, {rows, 1}, 0.5), dweight = b.filled(DType::f32, {rows, 1}, 0);
  for (auto step : state) {
    b.stream->weighted_activation_backward(dh, a, dweight, da, h, weight, {}, Activation::swiglu);
  }
  rate(state, "bytes/s", 7.0 * static_cast<double>(a.bytes()));
}
BENCHMARK(WeightedSwigluBackward)->Arg(0)->Arg(1)->UseRealTime();

struct AttentionInputs {
  AttentionShape shape;
  Tensor q, k, v, o, lse;
  AttentionInputs(Bench& b, const benchmark::State& state)
      : shape{state.range(0), state.range(1), 4, 4, state.range(2)} {
    const Shape size{shape.batch * shape.positions, shape.heads * shape.head_dim};
    q = b.random(dtype_of(state, 3), size);
    k = b.random(dtype_of(state, 3), size);
    v = b.random(dtype_of(state, 3), size);
    o = b.random(dtype_of(state, 3), size);
    lse = b.device->empty(DType::f32, {shape.batch, shape.heads, shape.positions});
  }
  // Of one product of scores or values, below the diagonal.
  double product_flops() const {
    return static_cast<double>(shape.batch * shape.heads * shape.positions * shape.positions * shape.head_dim);
  }
};

void Attention(benchmark::State& state) {
  Bench b;
  const AttentionInputs in(b, state);
  for (auto step : state) {
    b.stream->attention(in.o, in.lse, in.q, in.k, in.v, {}, in.shape);
  }
  rate(state, "FLOP/s", 2 * in.product_flops());
}
BENCHMARK(Attention)
    ->ArgsProduct({{16}, {256}, {64}, {0, 1}})
    ->ArgsProduct({{64}, {64}, {32}, {0}})
    ->ArgsProduct({{2}, {2048}, {64}, {0}})
    ->UseRealTime();

void AttentionBackward(benchmark::State& state) {
  Bench b;
  const AttentionInputs in(b, state);
  const Tensor dq = b.device->empty(in.q.dtype(), in.q.shape()), dk = b.device->empty(in.q.dtype(), in.q.shape());
  const Tensor dv = b.device->empty(in.q.dtype(), in.q.shape()), d_o = b.random(in.q.dtype(), in.q.shape());
  b.stream->attention(in.o, in.lse, in.q, in.k, in.v, {}, in.shape);
  for (auto step : state) {
    b.stream->attention_backward(dq, dk, dv, d_o, in.q, in.k, in.v, in.o, in.lse, {}, in.shape);
  }
  rate(state, "FLOP/s", 5 * in.product_flops());
}
BENCHMARK(AttentionBackward)
    ->ArgsProduct({{16}, {256}, {64}, {0, 1}})
    ->ArgsProduct({{64}, {64}, {32}, {0}})
    ->ArgsProduct({{2}, {2048}, {64}, {0}})
    ->UseRealTime();

void CrossEntropy(benchmark::State& state) {
  Bench b;
  const std::int64_t rows = 512, v = state.range(0);
  const Tensor logits = b.random(dtype_of(state, 1), {rows, v}), loss = b.device->empty(DType::f32, {rows});
  const Tensor label = b.filled(DType::i32, {rows}, 1);
  for (auto step : state) {
    b.stream->cross_entropy(loss, logits, label, 1.0f);
  }
  rate(state, "bytes/s", 2.0 * static_cast<double>(logits.bytes()));
}
BENCHMARK(CrossEntropy)->ArgsProduct({{256, 32000}, {0, 1}})->UseRealTime();

void AdamWStep(benchmark::State& state) {
  Bench b;
  const std::int64_t n = state.range(0);
  const Tensor p = b.random(DType::f32, {n}), m = b.filled(DType::f32, {n}, 0), v = b.filled(DType::f32, {n}, 0);
  const Tensor g = b.random(DType::f32, {n}), factor = b.filled(DType::f32, {1}, 1);
  for (auto step : state) {
    b.stream->adamw(p, p, m, v, g, factor, {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f});
  }
  rate(state, "bytes/s", 28.0 * static_cast<double>(n));
}
BENCHMARK(AdamWStep)->Arg(1 << 22)->UseRealTime();

}  // namespace
}  // namespace orthant

BENCHMARK_MAIN();
