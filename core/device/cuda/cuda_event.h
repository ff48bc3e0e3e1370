// An event of a CUDA stream, recorded at once or later by the thread that feeds a side stream.
//
// Thread safety: all calls, from any thread; record or fail once.
#pragma once

#include <cuda_runtime.h>

#include <orthant/device.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>

namespace orthant::cuda {

// As cudaEventQuery; "not yet" is not left behind as an error for the next launch to find.
inline cudaError_t query(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
  }
  return status;
}

// An event behind what `stream` has been given so far; the caller destroys it.
cudaEvent_t record_event(cudaStream_t stream);

class CudaEvent final : public Event {
 public:
  // covers: the main stream's work on memory up to this allocation (CudaDevice::allocations) is done when the event has
  // passed.
  explicit CudaEvent(std::uint64_t covers);
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

  const std::uint64_t covers_;
  cudaEvent_t event_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool recorded_ = false;
  std::exception_ptr failure_;
};

}  // namespace orthant::cuda
