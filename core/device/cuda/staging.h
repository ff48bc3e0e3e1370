// Pinned host memory between the host's memory and the device's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "core/device/cuda/recorder.h"

namespace orthant::cuda {

class EventPool;

// In the stream's order. Host memory: pinned, else the call may wait.
void copy_bytes(const StreamRef& stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);

// Keeps what is given back: to pin memory takes long, and the driver may wait for the whole device meanwhile.
// Thread safety: all calls, from any thread.
class PinnedCache {
 public:
  PinnedCache() = default;
  ~PinnedCache();
  PinnedCache(const PinnedCache&) = delete;
  PinnedCache& operator=(const PinnedCache&) = delete;

  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  Block take(std::size_t bytes);  // at least so many
  void give(Block block) noexcept;

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> free_;
};

// The memory of Device::host_empty. Tensors are dropped while copies of the main stream are on their way: their memory
// is handed out again when an event behind those has passed. (Side streams hold the tensors of their copies
// themselves.) Thread safety: all calls, from any thread.
class HostTensors {
 public:
  HostTensors(PinnedCache& pinned, EventPool& events, cudaStream_t main)
      : pinned_(pinned), events_(events), main_(main) {}
  ~HostTensors();
  HostTensors(const HostTensors&) = delete;
  HostTensors& operator=(const HostTensors&) = delete;

  // capturing: what the stream is given now comes later than an event would. No such event is recorded then, and the
  // memory waits for a later call.
  void* allocate(std::size_t bytes, bool capturing);
  void release(void* data, bool capturing) noexcept;

 private:
  struct Leaving {
    cudaEvent_t passed;  // null: not recorded yet
    PinnedCache::Block block;
  };
  void collect() noexcept;  // under the lock

  PinnedCache& pinned_;
  EventPool& events_;
  const cudaStream_t main_;
  std::mutex mutex_;
  std::deque<Leaving> leaving_;
  std::map<void*, PinnedCache::Block> used_;
};

// Copies to the device that return at once: the bytes are taken to pinned memory, which is used again when an event
// behind the copy has passed. Where much memory is on its way, the next copy waits for the oldest.
// Thread safety: as the stream it belongs to.
class Uploads {
 public:
  Uploads(PinnedCache& pinned, EventPool& events, const StreamRef& stream)
      : pinned_(pinned), events_(events), stream_(stream) {}
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  // Where it is listed for a graph, the graph keeps the bytes.
  void copy(void* to, const void* host, std::size_t bytes);

 private:
  struct InFlight {
    cudaEvent_t passed;
    PinnedCache::Block block;
  };
  void list(void* to, const void* host, std::size_t bytes);
  void collect(std::size_t most_bytes);  // until at most so many are on their way

  PinnedCache& pinned_;
  EventPool& events_;
  const StreamRef stream_;
  std::deque<InFlight> in_flight_;
  std::size_t in_flight_bytes_ = 0;
};

}  // namespace orthant::cuda
