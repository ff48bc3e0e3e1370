// The head of a training step, forward and backward: logits of every token, the loss, and both gradients, with two
// threads. Arguments: V, T, dtype (0: f32, 1: bf16); d = 512. `share`: of the rate of one large product that is ready
// in cache, in the same process. Products only are counted: 6 T V d.
#include "bench/bench_support.h"
#include "core/data/batch_builder.h"
#include "core/model/model.h"
#include "core/session/session.h"
#include "core/train/micro_batches.h"
#include "parallel/local/thread_world.h"

namespace orthant::bench {
namespace {

Config configuration(std::int64_t vocabulary, std::int64_t tokens, DType dtype) {
  Config config;
  Settings& settings = config.settings;
  settings.run.dtype = dtype == DType::f32 ? ComputeType::fp32 : ComputeType::bf16;
  settings.run.threads = threads;
  settings.model.vocab_size = vocabulary;
  settings.model.d_model = 512;
  settings.model.heads = 8;
  settings.model.layers = 1;
  settings.data.sequence_length = tokens;
  settings.batch.sequences = 1;
  return config;
}

void Head(benchmark::State& state) {
  const std::int64_t vocabulary = state.range(0), tokens = state.range(1);
  const DType dtype = state.range(2) == 0 ? DType::f32 : DType::bf16;
  const Config config = configuration(vocabulary, tokens, dtype);
  run_threads(1, [&](Communicator& communicator) {
    Machine m;
    Stream& stream = m.stream();
    Session session(config);
    session.bind(nullptr);
    session.plan(0, &communicator, &m.device());
    Plan& plan = session.plan();
    Model model(plan, stream);
    HostBatch host = padding_batch(0, 1, tokens);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(random_bits({.seed = 1}, i) % static_cast<std::uint64_t>(vocabulary));
    }
    put_document(host, 0, 0, ids, tokens);
    const DeviceBatch batch = upload(host, plan, stream);
    StepSums sums;
    sums.loss = m.values(DType::f64, {1}, std::vector<double>{0});
    const StepContext context{.plan = plan,
                              .stream = stream,
                              .batch = batch,
                              .sums = sums,
                              .training = true,
                              .loss_scale = 1.0f / static_cast<float>(tokens)};
    const Tensor x = m.normal(dtype, {tokens, config.settings.model.d_model}, 1);
    const int head = model.head();
    const std::vector<StashCall> calls = {{StashCall::Kind::put, head, 0}, {StashCall::Kind::take, head, 0}};
    const double operations = 6.0 * static_cast<double>(tokens * vocabulary * config.settings.model.d_model);
    measure_rate(state, "FLOP/s", operations, gemm_rate(dtype), [&] {
      model.begin_step();
      plan.stash().begin_step(calls, stream);
      model.forward(context, {x}, head, head + 1);
      model.backward(context, {}, head, head + 1, true, nullptr);
      stream.synchronize();
    });
  });
}
BENCHMARK(Head)
    ->ArgsProduct({{256, 32'000, 151'936}, {2048}, {0, 1}})
    ->ArgNames({"V", "T", "bf16"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orthant::bench

BENCHMARK_MAIN();
