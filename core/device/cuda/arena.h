// Device memory in the order of one stream, and the accounts of all such memory of a rank.
//
// Why a cache of our own instead of the driver's pools (cudaMallocAsync): what is allocated while a graph is captured
// becomes a node of that graph, lives and dies with its launches, and keeps the graph from being updated. A block of
// this cache is ordinary memory: captured, launched again, and used outside.
//
// The rule of an Arena: a block that is given back is handed out again at once, because its next user comes after its
// last in the stream's order. Whoever uses it on another stream answers for the order there (side_stream.h).
//
// ORTHANT_CUDA_CACHE=0 turns the cache off: every block is the driver's, of exactly the size asked for, and is freed in
// the stream's order. For compute-sanitizer, and the default where AddressSanitizer does its work (tests/simt). Nothing
// is captured then. Thread safety: all calls, from any thread.
#pragma once

#include <cuda_runtime.h>

#include <orthant/device.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device/cuda/block_cache.h"

namespace orthant::cuda {

class Arena;

// What a rank has of its GPU's memory, over all arenas.
class GpuMemory {
 public:
  GpuMemory(int ordinal, bool cached) : ordinal_(ordinal), cached_(cached) {}

  bool cached() const { return cached_; }

  // drop: called without locks before the GPU is given up as full, drops what only a finished use keeps. use: of the
  // device's tensors.
  void serve(std::function<void()> drop, std::function<MemoryUse()> use) {
    drop_ = std::move(drop);
    use_ = std::move(use);
  }
  // While a graph is captured nothing can be waited for, so that unused segments stay.
  void set_capturing(bool now) { capturing_ = now; }

 private:
  friend class Arena;
  // A segment of the driver, null where the GPU is full even without the unused segments of all arenas.
  std::byte* segment(std::size_t bytes);
  void make_room();
  [[noreturn]] void out_of_memory(std::size_t asked, cudaError_t status) const;

  const int ordinal_;
  const bool cached_;
  std::atomic<bool> capturing_ = false;
  std::function<void()> drop_;
  std::function<MemoryUse()> use_;
  mutable std::mutex mutex_;
  std::vector<Arena*> arenas_;
};

class Arena {
 public:
  Arena(std::shared_ptr<GpuMemory> gpu, cudaStream_t stream);
  // REQUIRES: every block is given back.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Aligned to 256 bytes; not null, whatever `bytes` is. Errors: Error saying what is asked for, in use, kept and free.
  void* take(std::size_t bytes);
  void give(void* block) noexcept;

 private:
  friend class GpuMemory;
  // Frees the segments without a block in use. Waits for the stream: its work may still use them.
  void trim() noexcept;
  std::size_t kept() const;

  const std::shared_ptr<GpuMemory> gpu_;
  const cudaStream_t stream_;
  mutable std::mutex mutex_;
  BlockCache cache_;
};

}  // namespace orthant::cuda
