// The CUDA device's Stream: every operation, each implemented in the file of its name (norm.cu, attention.cu, ...), the
// router's in router/cuda/, the experts' in experts/cuda/.
#pragma once

#include <cuda_runtime.h>

#include <orthant/ops.h>

#include <array>
#include <memory>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/graphs.h"
#include "core/device/cuda/staging.h"

namespace orthant::cuda {

class Cublas;
class CudnnAttention;

// Operations are enqueued and return; failures of kernels show up where the host waits. This class is the main stream,
// and what a side stream (side_stream.h) hands its operations to.
class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, cudaStream_t stream);
  ~CudaStream() override;

  Device& device() const override { return device_; }
  void* native() const override {
    device_.require_not_capturing("a launch on the stream's own handle", CudaDevice::not_listed);
    return stream_.handle();
  }
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override;
  void synchronize() override;
  // As a CUDA graph, from the second call on: graphs.h.
  void together(const std::function<void()>& work) override;
  void expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                  const Dispatch& dispatch, Activation kind) override;
  void expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                           const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in, const Tensor& w_out,
                           const Dispatch& dispatch, Activation kind, float beta) override;

  const StreamRef& handle() const { return stream_; }
  CudaDevice& cuda() const { return device_; }

  // Uninitialised device memory for the operation that asks, aligned to 256 bytes: what a later operation of this
  // stream writes there comes after it. One buffer a slot (0 to 3); grows, and is kept. (Tensors of `device()` serve as
  // well: what an operation allocates and drops is reused in this stream's order.)
  void* scratch(int slot, std::size_t bytes);
  // Words of the device that are 0, and that a kernel leaves so (last_block.h). Kept.
  unsigned* counters(std::int64_t words);

  // Between the host's memory and the device's, in this stream's order. The first returns at once, and the host's bytes
  // may change then; the second waits for the stream.
  void to_device(void* to, const void* host, std::size_t bytes);
  void to_host(void* host, const void* from, std::size_t bytes);

  // The operations.
#include "core/device/operation_overrides.inc"

 private:
  CudaDevice& device_;
  Graphs graphs_;
  StreamRef stream_;
  std::array<Tensor, 4> scratch_;
  Tensor counters_;
  std::shared_ptr<Cublas> cublas_;                   // from the first product on
  std::shared_ptr<CudnnAttention> cudnn_attention_;  // from the first attention that fits on
  Uploads uploads_;
};

}  // namespace orthant::cuda
