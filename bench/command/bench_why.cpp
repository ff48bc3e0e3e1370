#include "bench/command/bench_why.h"

#include <orthant/ops.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "core/arch/links.h"
#include "core/data/source.h"
#include "core/run/loaded_teacher.h"
#include "core/session/session.h"
#include "core/trace/tracing_communicator.h"
#include "core/trace/tracing_device.h"
#include "core/trace/tracing_stream.h"
#include "core/train/trainer.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

double seconds_of(Stream& s, const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  s.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The best of a few: the others met something else on the machine.
double best_of(Stream& s, const std::function<void()>& work) {
  double best = seconds_of(s, work);
  for (int i = 0; i < 3; ++i) {
    best = std::min(best, seconds_of(s, work));
  }
  return best;
}

// Doubled until it takes long enough to be large.
double product_rate(Device& device, Stream& s, DType dtype) {
  constexpr double long_enough = 0.02;
  for (std::int64_t n = 512;; n *= 2) {
    const Tensor a = device.empty(dtype, {n, n}), b = device.empty(dtype, {n, n}), c = device.empty(dtype, {n, n});
    s.fill(a, 0.5);
    s.fill(b, 0.5);
    const double seconds = best_of(s, [&] { s.gemm(c, a, b, {.transpose_b = true}); });
    if (seconds >= long_enough || n >= 8192) {
      const double side = static_cast<double>(n);
      return 2 * side * side * side / seconds;
    }
  }
}

double copy_rate(Device& device, Stream& s) {
  const std::int64_t elements = 1 << 24;
  const Tensor from = device.empty(DType::f32, {elements}), to = device.empty(DType::f32, {elements});
  s.fill(from, 1);
  s.fill(to, 1);
  const double seconds = best_of(s, [&] { s.copy(to, from); });
  return 2 * static_cast<double>(from.bytes()) / seconds;
}

}  // namespace

StepCauses why_a_step_takes(const Config& config, int world_size, int warmup, int steps, StepFloor& floor) {
  const Settings& settings = config.settings;
  std::mutex mutex;
  std::vector<RankTrace> parts;
  double tokens = 0;
  floor = {};
  run_threads(world_size,
              [&](Communicator& plain) {
                Trace trace(plain.rank(), false);
                TracingCommunicator communicator(plain, trace);
                TracingDevice device(make_device(settings.run.device, static_cast<int>(settings.run.threads),
                                                 settings.run.deterministic),
                                     trace);
                const std::unique_ptr<Stream> stream = device.make_main_stream();
                const std::unique_ptr<BatchSource> source = make_batch_source(settings);
                Session session(config);
                session.plan(plain.rank(), &communicator, &device);
                Group& world = session.mesh().world_group("bench");
                world.barrier(*stream);
                const double products =
                    product_rate(device, *stream, settings.run.dtype == ComputeType::fp32 ? DType::f32 : DType::bf16);
                world.barrier(*stream);
                const double copies = copy_rate(device, *stream);
                const std::unique_ptr<Teacher> teacher = loaded_teacher(config, communicator, device, *stream);
                Trainer trainer(session.plan(), *stream, *source, teacher.get());
                double own_tokens = 0;
                const std::int64_t first = first_largest_step(settings.batch);  // of a batch that grows the last size
                for (std::int64_t step = first; step < first + warmup + steps; ++step) {
                  if (step == first + warmup) {
                    world.barrier(*stream);
                    stream->synchronize();
                    trace.record(true);
                  }
                  const Phase phase(*stream, "step", {.step = step + 1}, SpanKind::step);
                  own_tokens = static_cast<double>(trainer.step(step).tokens);
                }
                stream->synchronize();
                trace.record(false);
                world.barrier(*stream);
                RankTrace part = take(trace);
                part.stage = session.plan().stage();
                const std::lock_guard lock(mutex);
                parts.push_back(std::move(part));
                floor.flops_per_second += products / world_size;
                floor.bytes_per_second += copies / world_size;
                tokens += own_tokens * session.mesh().workers() / world_size;
              },
              {.timeout_seconds = settings.run.timeout_seconds, .segment = {}});
  floor.model_flops = training_flops(links_of(settings)) * tokens / world_size;
  return step_causes(join(std::move(parts)), floor);
}

}  // namespace orthant
