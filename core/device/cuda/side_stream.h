// A side stream of the CUDA device: a cudaStream_t of its own beside the main stream.
//
// Memory. Tensors' memory is handed out and taken back in the host's order, which is the order of the main stream's
// work; a side stream is ordered with that only by events. Two rules make it safe, whatever the caller forgets:
//   - A side stream holds the tensors of its operations until an event behind them has passed (kept_tensors.h). So
//     memory that is handed out again is never still used by a side stream.
//   - Before its first use of a tensor that was allocated after the main stream's last event it waits for, a side
//     stream waits for a new event of the main stream. Memory whose former tensor the main stream still uses was taken
//     back, and so handed out again, after that use was enqueued: the event is behind it.
// Working memory of the operations themselves comes from an arena in this stream's order. Work that is handed to
// native() says what it uses first: Stream::uses. All this orders memory, not values: who reads what another stream has
// written still waits for that stream's event.
//
// Host work (a communicator's collective over the host) runs on a thread of this stream, made by the first host(): from
// then on the thread feeds the stream. It waits for the stream and runs the work, with nothing enqueued behind it
// meanwhile; what the caller posts later is enqueued later, and an event of this stream is recorded when the thread
// comes to it. Who lets the main stream wait for such an event waits on the host until then, as with the CPU's streams.
// Why not a stream that waits for a flag in host memory (cuStreamWaitValue32): the GPU would then wait for the host,
// and whatever makes the host wait for the GPU meanwhile hangs: pinning or allocating memory, a module of kernels that
// is loaded late, two streams behind one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS). Communicators that work on the
// device itself never call host(), and pay nothing for this.
//
// Failure: as core/device/cpu/side_stream.h for what runs on the thread; before that an operation throws where it is
// called. Thread safety: as ops.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/device/cpu/work_queue.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_event.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/kept_tensors.h"
#include "core/device/forwarding_stream.h"

namespace orthant::cuda {

class CudaSideStream final : public ForwardingStream {
 public:
  explicit CudaSideStream(CudaDevice& device);
  ~CudaSideStream() override;

  Device& device() const override { return device_; }
  void* native() const override { return stream_; }
  void uses(std::initializer_list<Tensor> tensors) override;
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override;
  void synchronize() override;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  // At once, or by the thread where there is one.
  void enqueue(std::function<void()> work);
  void start_thread();
  // The main stream's event that must have passed before `tensors` are used; null where it has been waited for.
  std::shared_ptr<CudaEvent> behind(std::initializer_list<Tensor> tensors);

  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  std::uint64_t covered_ = 0;  // allocations of the device that this stream's events of the main stream cover
  std::shared_ptr<KeptTensors> kept_;
  std::optional<CudaDevice> own_;  // the device with this stream's memory
  std::unique_ptr<CudaStream> inner_;
  std::thread::id thread_;
  std::unique_ptr<WorkQueue> queue_;  // last: what it runs needs the rest
};

}  // namespace orthant::cuda
