// An event of a CUDA stream, recorded at once or later by the thread that feeds a side stream.
//
// Thread safety: all calls, from any thread; record or fail once.
#pragma once

#include <cuda_runtime.h>

#include <orthant/device.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace orthant::cuda {

// As cudaEventQuery; "not yet" is not left behind as an error for the next launch to find.
inline cudaError_t query(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
  }
  return status;
}

// Events to be used again, of one GPU: to make and destroy one for each operation costs as much as its launch. What
// waits for an event that was given back waits for what it was recorded behind then. Thread safety: all calls, from any
// thread.
class EventPool {
 public:
  // gpu: its ordinal. Threads that take events may have chosen none yet.
  explicit EventPool(int gpu) : gpu_(gpu) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  cudaEvent_t take();
  // Taken, and recorded behind what `stream` has been given so far.
  cudaEvent_t record(cudaStream_t stream);
  void give(cudaEvent_t event) noexcept;

 private:
  const int gpu_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class CudaEvent final : public Event {
 public:
  // covers: the main stream's work on memory up to this allocation (CudaDevice::allocations) is done when the event has
  // passed.
  CudaEvent(std::shared_ptr<EventPool> pool, std::uint64_t covers);
  ~CudaEvent() override;

  void record(cudaStream_t stream);
  void fail(std::exception_ptr failure);  // instead: rethrown by whoever waits

  bool ready() const override;
  void wait() override;
  // Later work of `stream` waits for the event. The host waits until it is recorded.
  void before(cudaStream_t stream);
  bool recorded() const;
  std::uint64_t covers() const { return covers_; }

 private:
  void wait_until_recorded();

  const std::shared_ptr<EventPool> pool_;
  const std::uint64_t covers_;
  cudaEvent_t event_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool recorded_ = false;
  std::exception_ptr failure_;
};

}  // namespace orthant::cuda
