// CUDA graphs: what a step enqueues, launched as one, so that the GPU does not wait for the host between kernels.
//
// The host goes through the step each time, and what it would enqueue is listed (recorder.h). A graph that was recorded
// of the same sequence is launched again: of its kernels those whose parameters are others now (the learning rate, the
// number of the step, an address) get the new ones, and nothing is recorded. A new sequence is recorded, and kept.
//
// Thread safety: as the stream it belongs to.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <list>
#include <vector>

#include "core/device/cuda/recorder.h"

namespace orthant::cuda {

class CudaDevice;

class Graphs {
 public:
  Graphs(CudaDevice& device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // The first call runs `work` as it is: it makes memory, libraries' handles and modules of kernels be there, which
  // takes calls that cannot be recorded. Errors: what `work` throws (nothing of it has run then); Error where it waits
  // for the device.
  void launch(const std::function<void()>& work);

  Recorder& recorder() { return recorder_; }

 private:
  // A sequence and its graph, ready to be launched.
  struct Kept {
    std::vector<Command> commands;
    std::vector<cudaGraphNode_t> nodes;  // of kernels; null of others
    cudaGraph_t graph = nullptr;         // which the nodes belong to
    cudaGraphExec_t exec = nullptr;

    Kept() = default;
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
  };

  std::vector<Command> list(const std::function<void()>& work);
  void record(Kept& kept);
  // Gives the kept graph the parameters of these commands, of the same sequence. False: it has taken some of them only,
  // and is of no use any more.
  static bool set(Kept& kept, const std::vector<Command>& commands);

  CudaDevice& device_;
  const cudaStream_t stream_;
  Recorder recorder_;
  bool warm_ = false;
  std::list<Kept> kept_;  // the latest first
};

}  // namespace orthant::cuda
