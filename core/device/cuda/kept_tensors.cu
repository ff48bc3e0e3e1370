#include "core/device/cuda/kept_tensors.h"

#include <utility>

#include "core/device/cuda/cuda_event.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {

KeptTensors::~KeptTensors() {
  for (const Entry& entry : entries_) {
    events_->give(entry.passed);
  }
}

void KeptTensors::push(std::vector<Tensor> tensors) {
  entries_.push_back({events_->record(stream_), std::move(tensors)});
}

void KeptTensors::keep(std::vector<Tensor> tensors) {
  close();
  const std::lock_guard lock(mutex_);
  push(std::move(tensors));
}

void KeptTensors::open(std::vector<Tensor> tensors) {
  close();
  const std::lock_guard lock(mutex_);
  open_ = std::move(tensors);
}

void KeptTensors::close() {
  const std::lock_guard lock(mutex_);
  if (!open_.empty()) {
    push(std::exchange(open_, {}));
  }
}

void KeptTensors::collect() {
  drop(false);
}

void KeptTensors::wait_and_collect() {
  drop(true);
}

// Memory is released outside the lock: that may come back here.
void KeptTensors::drop(bool wait) {
  std::vector<Entry> done;
  {
    const std::lock_guard lock(mutex_);
    while (!entries_.empty()) {
      const cudaEvent_t oldest = entries_.front().passed;
      const cudaError_t status = wait ? cudaEventSynchronize(oldest) : query(oldest);
      if (status != cudaSuccess) {
        break;
      }
      done.push_back(std::move(entries_.front()));
      entries_.pop_front();
    }
  }
  for (const Entry& entry : done) {
    events_->give(entry.passed);
  }
}

}  // namespace orthant::cuda
