#include "core/device/cuda/cuda_event.h"

#include <utility>

#include "core/device/cuda/launch.h"

namespace orthant::cuda {

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_) {
    static_cast<void>(cudaEventDestroy(event));
  }
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaSetDevice(gpu_), "choosing the GPU of an event");
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}

cudaEvent_t EventPool::record(cudaStream_t stream) {
  const cudaEvent_t event = take();
  if (const cudaError_t status = cudaEventRecord(event, stream); status != cudaSuccess) {
    static_cast<void>(cudaEventDestroy(event));  // the next to take it would fail too
    check(status, "recording an event");
  }
  return event;
}

void EventPool::give(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, std::uint64_t covers)
    : pool_(std::move(pool)), covers_(covers), event_(pool_->take()) {}

CudaEvent::~CudaEvent() {
  pool_->give(event_);
}

void CudaEvent::record(cudaStream_t stream) {
  const cudaError_t status = cudaEventRecord(event_, stream);
  if (status != cudaSuccess) {
    try {
      check(status, "recording an event");
    } catch (...) {
      fail(std::current_exception());
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  recorded_ = true;
  changed_.notify_all();
}

void CudaEvent::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  recorded_ = true;
  failure_ = std::move(failure);
  changed_.notify_all();
}

bool CudaEvent::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

bool CudaEvent::ready() const {
  const std::lock_guard lock(mutex_);
  return recorded_ && (failure_ != nullptr || query(event_) != cudaErrorNotReady);
}

void CudaEvent::wait_until_recorded() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return recorded_; });
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void CudaEvent::wait() {
  wait_until_recorded();
  check(cudaEventSynchronize(event_), "waiting for an event");
}

void CudaEvent::before(cudaStream_t stream) {
  wait_until_recorded();
  check(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event");
}

}  // namespace orthant::cuda
