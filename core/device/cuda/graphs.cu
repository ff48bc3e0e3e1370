#include "core/device/cuda/graphs.h"

#include <exception>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/launch.h"
#include "core/device/cuda/staging.h"

namespace orthant::cuda {
namespace {

constexpr std::size_t most_prepared = 8;

struct GraphHolder {
  cudaGraph_t graph;
  ~GraphHolder() { static_cast<void>(cudaGraphDestroy(graph)); }
};

}  // namespace

Graphs::~Graphs() {
  forget();
}

void Graphs::forget() {
  static_cast<void>(cudaStreamSynchronize(stream_));  // they may be running
  for (const auto& [size, exec] : prepared_) {
    static_cast<void>(cudaGraphExecDestroy(exec));
  }
  prepared_.clear();
}

void Graphs::launch(const std::function<void()>& work) {
  if (!warm_ || !device_.captures() || device_.capturing()) {
    warm_ = true;
    work();
    return;
  }
  const GraphHolder recorded{record(work)};
  try {
    check(cudaGraphLaunch(prepared(recorded.graph), stream_), "launching a graph");
  } catch (...) {
    uploads_.dropped();
    throw;
  }
  uploads_.launched();
}

// Relaxed: other threads, and calls that touch no stream (a segment of memory, say), are free to do what they do.
cudaGraph_t Graphs::record(const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "recording a graph");
  device_.set_capturing(true);
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  device_.set_capturing(false);
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
  if (failure || status != cudaSuccess) {
    uploads_.dropped();
    static_cast<void>(cudaGetLastError());
    if (graph != nullptr) {
      static_cast<void>(cudaGraphDestroy(graph));
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
    fail(
        "together(): what was to be recorded waits for the device, or uses another stream that does not come back: {} "
        "({})",
        cudaGetErrorName(status), cudaGetErrorString(status));
  }
  return graph;
}

cudaGraphExec_t Graphs::prepared(cudaGraph_t graph) {
  std::size_t operations = 0;
  check(cudaGraphGetNodes(graph, nullptr, &operations), "counting a graph's operations");
  const auto known = prepared_.find(operations);
  if (known != prepared_.end()) {
    cudaGraphExecUpdateResultInfo what{};
    if (cudaGraphExecUpdate(known->second, graph, &what) == cudaSuccess) {
      return known->second;
    }
    static_cast<void>(cudaGetLastError());
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaGraphExecDestroy(known->second));
    prepared_.erase(known);
  }
  if (prepared_.size() == most_prepared) {
    forget();
  }
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0), "preparing a graph");
  return prepared_[operations] = exec;
}

}  // namespace orthant::cuda
