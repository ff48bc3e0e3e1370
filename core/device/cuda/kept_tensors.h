// Tensors that the enqueued work of a side stream still uses: held until an event behind that work has passed, so that
// their memory is not handed out before.
//
// Thread safety: all calls, from any thread.
#pragma once

#include <cuda_runtime.h>

#include <orthant/tensor.h>

#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/device/cuda/cuda_event.h"

namespace orthant::cuda {

class KeptTensors {
 public:
  KeptTensors(cudaStream_t stream, std::shared_ptr<EventPool> events) : stream_(stream), events_(std::move(events)) {}
  ~KeptTensors();
  KeptTensors(const KeptTensors&) = delete;
  KeptTensors& operator=(const KeptTensors&) = delete;

  // Until what the stream has been given so far is done.
  void keep(std::vector<Tensor> tensors);
  // Until what the stream has been given by the next call of keep or close is done.
  void open(std::vector<Tensor> tensors);
  void close();

  // Drops what is done with; never waits. Cheap while nothing is kept.
  void collect();
  // The same, but waits for the device first.
  void wait_and_collect();

 private:
  struct Entry {
    cudaEvent_t passed;
    std::vector<Tensor> tensors;
  };
  void push(std::vector<Tensor> tensors);  // under the lock
  void drop(bool wait);

  const cudaStream_t stream_;
  const std::shared_ptr<EventPool> events_;
  std::mutex mutex_;
  std::deque<Entry> entries_;
  std::vector<Tensor> open_;
};

}  // namespace orthant::cuda
