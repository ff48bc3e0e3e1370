// The scratch file of tensors on a disk, as `offload` uses it: 256 MiB one after the other, 1 MiB a block, 16 blocks at
// a time, past the page cache.
//
//   offload_files_bench [--benchmark_filter=REGEX]     in the folder where it is started: `cd` to the disk
//
// `fresh`: ranges that were never written; some file systems are slower there. A transfer is 32 MiB, as large tensors
// are; two are under way. bench/peers/fio_peer.sh runs fio beside it, in turns.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>

#include "offload/files/scratch_file.h"

namespace orthant::offload {
namespace {

constexpr std::int64_t total = std::int64_t{256} << 20, part = std::int64_t{32} << 20;

std::unique_ptr<ScratchFile> open_here(Engine engine) {
  return std::make_unique<ScratchFile>(ScratchFileOptions{.directory = ".", .bytes = total, .engine = engine});
}

// All of the file in parts, the next one started before the last one is waited for.
template <class Start>
void pass(const Start& start) {
  std::shared_ptr<Transfer> last;
  for (std::int64_t at = 0; at < total; at += part) {
    const std::shared_ptr<Transfer> next = start(at);
    if (last) {
      last->wait();
    }
    last = next;
  }
  last->wait();
}

AlignedBuffer memory() {
  AlignedBuffer made(2 * part);
  std::mt19937_64 random(1);  // a disk may store what is alike in less
  for (std::int64_t i = 0; i < made.bytes(); i += 8) {
    const std::uint64_t value = random();
    std::memcpy(made.data() + i, &value, 8);
  }
  return made;
}

void write_pass(ScratchFile& file, const AlignedBuffer& from) {
  pass([&](std::int64_t at) { return file.write(at, from.data() + at % (2 * part), part); });
}

void report(benchmark::State& state, const ScratchFile& file) {
  state.SetBytesProcessed(state.iterations() * total);
  state.SetLabel(std::string(file.engine()) + (file.direct() ? "" : ", through the page cache"));
}

void fresh_write(benchmark::State& state, Engine engine) {
  const AlignedBuffer from = memory();
  std::unique_ptr<ScratchFile> file;
  for (auto _ : state) {
    state.PauseTiming();
    file.reset();
    file = open_here(engine);
    state.ResumeTiming();
    write_pass(*file, from);
  }
  report(state, *file);
}

void write(benchmark::State& state, Engine engine) {
  const AlignedBuffer from = memory();
  const std::unique_ptr<ScratchFile> file = open_here(engine);
  write_pass(*file, from);
  for (auto _ : state) {
    write_pass(*file, from);
  }
  report(state, *file);
}

void read(benchmark::State& state, Engine engine) {
  AlignedBuffer to = memory();
  const std::unique_ptr<ScratchFile> file = open_here(engine);
  write_pass(*file, to);
  for (auto _ : state) {
    pass([&](std::int64_t at) { return file->read(at, to.data() + at % (2 * part), part); });
  }
  report(state, *file);
}

#define ORTHANT_MEASURE(what)                       \
  BENCHMARK_CAPTURE(what, uring, Engine::uring)     \
      ->MeasureProcessCPUTime()                     \
      ->UseRealTime()                               \
      ->Unit(benchmark::kMillisecond)               \
      ->Iterations(1);                              \
  BENCHMARK_CAPTURE(what, threads, Engine::threads) \
      ->MeasureProcessCPUTime()                     \
      ->UseRealTime()                               \
      ->Unit(benchmark::kMillisecond)               \
      ->Iterations(1)
ORTHANT_MEASURE(fresh_write);
ORTHANT_MEASURE(write);
ORTHANT_MEASURE(read);

}  // namespace
}  // namespace orthant::offload

BENCHMARK_MAIN();
