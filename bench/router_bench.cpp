// The router's operations at the shapes of the small Mixtral: 4096 tokens, width 256, top-2 of E experts, two threads.
//
// Arguments: E, skew (0: uniform routing, 1: half of all tokens prefer one expert). B/s counts what must
// be read and written at least; `share` is that over the rate of a large copy on this machine, measured first.
#include "bench/bench_support.h"

namespace orthant::bench {
namespace {

constexpr std::int64_t tokens = 4096, d = 256, top_k = 2, group = 256;

struct Layer {
  Machine m;
  GateConfig config;
  RandomKey key{.seed = 1};
  Tensor logits, valid, token, expert, weight, lse, chosen, share, row, source, count, dropped, offset, dweight,
      dlogits, losses;
  Tensor x, y, rows, drows;
  std::int64_t kept = 0;

  Layer(std::int64_t experts, bool skewed, double capacity, DType dtype) {
    config.experts = experts;
    config.top_k = top_k;
    config.group_tokens = group;
    config.capacity_factor = capacity;
    std::vector<float> l(tokens * experts);
    std::vector<std::int64_t> number(tokens);
    for (std::size_t i = 0; i < l.size(); ++i) {
      l[i] = normal(key, i) + (skewed && i % static_cast<std::size_t>(2 * experts) == 0 ? 8.0f : 0.0f);
    }
    for (std::size_t t = 0; t < number.size(); ++t) {
      number[t] = static_cast<std::int64_t>(t);
    }
    logits = m.values(DType::f32, {tokens, experts}, l);
    token = m.values(DType::i64, {tokens}, number);
    valid = m.values(DType::u8, {tokens}, std::vector<std::uint8_t>(tokens, 1));
    dlogits = m.empty(DType::f32, {tokens, experts});
    expert = m.empty(DType::i32, {tokens, top_k});
    weight = m.empty(DType::f32, {tokens, top_k});
    dweight = m.normal(DType::f32, {tokens, top_k}, 1);
    lse = m.empty(DType::f32, {tokens});
    chosen = m.empty(DType::i32, {tokens / group, experts});
    share = m.empty(DType::f64, {tokens / group, experts});
    losses = m.values(DType::f64, {2}, std::vector<double>{0, 0});
    row = m.empty(DType::i32, {tokens, top_k});
    source = m.empty(DType::i32, {tokens * top_k, 1});
    count = m.empty(DType::i32, {experts});
    dropped = m.empty(DType::i32, {experts});
    offset = m.empty(DType::i32, {experts + 1});
    gate();
    plan();
    std::vector<std::int32_t> counts(experts);
    m.stream().download(counts.data(), count);
    for (const std::int32_t n : counts) {
      kept += n;
    }
    x = m.normal(dtype, {tokens, d}, 1);
    y = m.normal(dtype, {tokens, d}, 1);
    rows = m.normal(dtype, {kept, d}, 1);
    drows = m.normal(dtype, {kept, d}, 1);
  }
  void gate() { m.stream().gate(expert, weight, lse, chosen, share, logits, valid, token, key, config); }
  void plan() { m.stream().dispatch_plan(row, source, count, dropped, offset, expert, weight, valid, config); }
};

template <class F>
void measure(benchmark::State& state, DType dtype, double capacity, F&& fn) {
  const double ceiling = copy_rate();
  Layer layer(state.range(0), state.range(1) != 0, capacity, dtype);
  const double bytes = fn(layer);
  measure_rate(state, "B/s", bytes, ceiling, [&] { fn(layer); });
}

double size(std::initializer_list<Tensor> tensors) {
  double sum = 0;
  for (const Tensor& t : tensors) {
    sum += static_cast<double>(t.bytes());
  }
  return sum;
}

void gate(benchmark::State& state) {
  measure(state, DType::f32, 0, [](Layer& l) {
    l.gate();
    return size({l.logits, l.expert, l.weight, l.lse, l.chosen, l.share});
  });
}
void gate_backward(benchmark::State& state) {
  measure(state, DType::f32, 0, [](Layer& l) {
    l.m.stream().gate_backward(l.dlogits, l.dweight, l.expert, l.lse, l.chosen, l.logits, l.valid, 0.01f, 0.001f,
                               l.config);
    return size({l.logits, l.lse, l.dlogits, l.dweight, l.expert});
  });
}
void gate_losses(benchmark::State& state) {
  measure(state, DType::f32, 0, [](Layer& l) {
    l.m.stream().gate_losses(l.losses.slice(0, {1}), l.losses.slice(1, {1}), l.chosen, l.share, l.lse, l.config);
    return size({l.chosen, l.share, l.lse});
  });
}
void capacity(benchmark::State& state, double factor) {
  measure(state, DType::f32, factor, [](Layer& l) {
    l.plan();
    return size({l.expert, l.weight, l.row, l.source, l.count});
  });
}
void pack(benchmark::State& state, DType dtype) {
  measure(state, dtype, 0, [](Layer& l) {
    l.m.stream().pack(l.rows, l.x, l.row, l.source);
    return size({l.rows, l.x, l.row, l.source});
  });
}
void pack_backward(benchmark::State& state, DType dtype) {
  measure(state, dtype, 0, [](Layer& l) {
    l.m.stream().pack_backward(l.y, l.drows, l.row, true);
    return size({l.y, l.y, l.drows, l.row});
  });
}
void combine(benchmark::State& state, DType dtype) {
  measure(state, dtype, 0, [](Layer& l) {
    l.m.stream().combine(l.y, l.rows, l.row, l.weight, false);
    return size({l.y, l.rows, l.row, l.weight});
  });
}
void combine_backward(benchmark::State& state, DType dtype) {
  measure(state, dtype, 0, [](Layer& l) {
    l.m.stream().combine_backward(l.drows, l.dweight, l.y, l.rows, l.row, l.source, l.weight);
    return size({l.drows, l.dweight, l.y, l.rows, l.row, l.weight});
  });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"E", "skew"})->ArgsProduct({{8, 64}, {0, 1}})->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(gate)->Apply(shapes);
BENCHMARK(gate_backward)->Apply(shapes);
BENCHMARK(gate_losses)->Apply(shapes);
BENCHMARK_CAPTURE(capacity, dropless, 0.0)->Apply(shapes);
BENCHMARK_CAPTURE(capacity, 1.25, 1.25)->Apply(shapes);
BENCHMARK_CAPTURE(pack, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(pack, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(pack_backward, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(pack_backward, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(combine, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(combine, bf16, DType::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(combine_backward, f32, DType::f32)->Apply(shapes);
BENCHMARK_CAPTURE(combine_backward, bf16, DType::bf16)->Apply(shapes);

}  // namespace
}  // namespace orthant::bench

BENCHMARK_MAIN();
