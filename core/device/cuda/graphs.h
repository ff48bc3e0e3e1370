// CUDA graphs: what a step enqueues, recorded and launched as one, so that the GPU does not wait for the host between
// kernels. It is recorded anew each time: only what changed (addresses, step numbers) is then updated in the graph that
// the driver has prepared, and a new one is made where the sequence of operations is another one.
//
// Thread safety: as the stream it belongs to.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>

namespace orthant::cuda {

class CudaDevice;
class Uploads;

class Graphs {
 public:
  Graphs(CudaDevice& device, cudaStream_t stream, Uploads& uploads)
      : device_(device), stream_(stream), uploads_(uploads) {}
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // The first call runs `work` as it is: it makes memory, libraries' handles and modules of kernels be there, which
  // takes calls that cannot be recorded. Errors: what `work` throws (nothing of it has run then); Error where it waits
  // for the device.
  void launch(const std::function<void()>& work);

 private:
  cudaGraph_t record(const std::function<void()>& work);
  cudaGraphExec_t prepared(cudaGraph_t graph);
  void forget();

  CudaDevice& device_;
  const cudaStream_t stream_;
  Uploads& uploads_;
  bool warm_ = false;
  std::map<std::size_t, cudaGraphExec_t> prepared_;  // by number of operations
};

}  // namespace orthant::cuda
