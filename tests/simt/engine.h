// The engine: runs a grid of CUDA threads on the calling OS thread. What a kernel calls is in device_functions.h.
//
// Blocks run one after another, a block's threads on fibers that are left at barriers and warp collectives, both in a
// random order that the seed fixes. Shared memory holds 0xFF (NaN) when a block begins.
//
// Errors: a misuse throws Error out of launch(), naming the launch, block, thread, and the seed.
// Thread safety: every OS thread has an engine of its own; several may launch at once.
#pragma once

#include <vector_types.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/simt/counters.h"
#include "tests/simt/streams.h"

namespace orthant::simt {

// The GPU that this stands for, 86 for sm_86: the environment's ORTHANT_SIMT_ARCHITECTURE, or 80.
// Errors: Error for another word than those of the table below.
int architecture();
// Shared memory of a block in all, by that architecture (CUDA C++ Programming Guide, table of compute capabilities).
std::size_t shared_limit();
inline constexpr std::size_t static_shared_limit = 48 * 1024;
// Dynamic shared memory that a kernel may be launched with: 48 KB, until more is allowed. Thread safety: any thread.
std::size_t allowed_shared(const void* kernel);
void allow_shared(const void* kernel, std::size_t bytes);
inline constexpr int block_threads_limit = 1024;

struct Position {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
// threadIdx, blockIdx, blockDim, gridDim of the running CUDA thread; nullptr outside of a kernel.
extern constinit thread_local const Position* position;

struct Launch {
  dim3 blocks;
  int threads;
  std::size_t shared_bytes;
  std::source_location where;
};

void run(const Launch& launch, void (*body)(const void*), const void* argument);

// Errors: Error where the kernel has not been allowed so much dynamic shared memory.
void check_allowed(const Launch& launch, const void* kernel);

// Runs body() on every thread of the grid, in the stream's order. kernel: the same for launches of one kernel.
template <class Body>
void launch(const Launch& how, CUstream_st* stream, const void* kernel, const Body& body) {
  check_allowed(how, kernel);
  ++counters().launches;
  if (counters().only) {
    return;
  }
  const auto grid = [](const Launch& at, const Body& of) {
    run(
        at, [](const void* one) { (*static_cast<const Body*>(one))(); }, &of);
  };
  if (runs_at_once(stream)) {
    grid(how, body);
  } else {
    give(stream, kernel, [=] { grid(how, body); });
  }
}

// A kernel whose parameters lie at addresses.
struct NodeKernel {
  void (*call)(const void* kernel, void* const* at);
  std::vector<std::size_t> sizes;  // of its parameters
};

template <class T>
T value_at(const void* address) {  // wherever it lies
  std::array<std::byte, sizeof(T)> bytes;
  std::memcpy(bytes.data(), address, sizeof(T));
  return std::bit_cast<T>(bytes);
}

template <class... P>
NodeKernel node_kernel() {
  return {[](const void* kernel, void* const* at) {
            [&]<std::size_t... i>(std::index_sequence<i...>) {
              reinterpret_cast<void (*)(P...)>(const_cast<void*>(kernel))(value_at<P>(at[i])...);
            }
            (std::index_sequence_for<P...>{});
          },
          {sizeof(P)...}};
}

// As launch(), of a node of a graph, where the stream is captured.
void launch_node(const Launch& how, CUstream_st* stream, const void* kernel, const NodeKernel& node,
                 void* const* parameters);

// The order of threads and blocks in the launches of this OS thread from now on: each of them uses another one, all
// from this seed. At first it is the environment's ORTHANT_SIMT_SEED, or 1.
void reseed(std::uint64_t seed);

// --- for device_functions.h and launch.h

// The block's memory behind one ORTHANT_SHARED: `tag` tells it from others. Aligned to 16 bytes or the type's own.
void* static_shared_bytes(const void* tag, std::size_t bytes, std::size_t alignment);
// The same of what the model of an instruction needs: the GPU has no such memory, so it counts for no limit.
void* exchange_bytes(const void* tag, std::size_t bytes, std::size_t alignment);
void* dynamic_shared_bytes();

template <class T>
T& static_shared(const void* tag) {
  static_assert(std::is_trivially_default_constructible_v<std::remove_all_extents_t<T>>,
                "shared memory has no constructors");
  return *static_cast<T*>(static_shared_bytes(tag, sizeof(T), alignof(T)));
}

template <class T>
T& exchange(const void* tag) {
  return *static_cast<T*>(exchange_bytes(tag, sizeof(T), alignof(T)));
}

// Waits for the block's threads that have not returned. Result: how many of them gave a true predicate.
int block_barrier(const char* function, bool predicate, const std::source_location& where);

enum class Collective { barrier, shuffle, ballot, match, greatest };

// Waits for the lanes of `mask` that have not returned.
//   shuffle: the value of lane `source`.
//   ballot: the lanes whose value is not 0.
//   match: the lanes that have this lane's value.
//   greatest: of the values.
std::uint64_t warp_collective(Collective kind, const char* function, unsigned mask, std::uint64_t value, int source,
                              const std::source_location& where);

// --- for async_copies.cpp

// Another one for each block that this OS thread runs.
std::uint64_t block_number();

// Ends the launch with an error that names the thread.
[[noreturn]] void misuse(const std::string& what, const std::source_location& where);

}  // namespace orthant::simt
