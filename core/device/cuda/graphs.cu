#include "core/device/cuda/graphs.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {
namespace {

constexpr std::size_t most_kept = 8;

// The node of what the stream was given last, while it is captured.
cudaError_t latest_node(cudaStream_t stream, cudaGraphNode_t* node) {
  cudaStreamCaptureStatus capturing{};
  const cudaGraphNode_t* before = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t status = cudaStreamGetCaptureInfo(stream, &capturing, nullptr, nullptr, &before, nullptr, &count);
#else
  const cudaError_t status = cudaStreamGetCaptureInfo_v2(stream, &capturing, nullptr, nullptr, &before, &count);
#endif
  *node = status == cudaSuccess && count == 1 ? *before : nullptr;
  return status;
}

}  // namespace

Graphs::Kept::~Kept() {
  if (exec != nullptr) {
    static_cast<void>(cudaGraphExecDestroy(exec));
  }
  if (graph != nullptr) {
    static_cast<void>(cudaGraphDestroy(graph));
  }
}

Graphs::~Graphs() {
  static_cast<void>(cudaStreamSynchronize(stream_));  // they may be running
}

void Graphs::launch(const std::function<void()>& work) {
  if (!warm_ || !device_.captures() || device_.capturing()) {
    warm_ = true;
    work();
    return;
  }
  std::vector<Command> commands = list(work);
  auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return std::equal(commands.begin(), commands.end(), kept.commands.begin(), kept.commands.end(),
                      [](const Command& a, const Command& b) { return a.same_kind(b); });
  });
  const bool known = found != kept_.end();
  if (!known || !set(*found, commands)) {
    if (known || kept_.size() == most_kept) {
      static_cast<void>(cudaStreamSynchronize(stream_));  // it may be running
      kept_.erase(known ? found : std::prev(kept_.end()));
    }
    found = kept_.emplace(kept_.begin());
    found->commands = std::move(commands);
    try {
      record(*found);
    } catch (...) {
      kept_.erase(found);
      throw;
    }
  }
  check(cudaGraphLaunch(found->exec, stream_), "launching a graph");
  kept_.splice(kept_.begin(), kept_, found);
}

std::vector<Command> Graphs::list(const std::function<void()>& work) {
  recorder_.begin();
  device_.set_capturing(true);
  try {
    work();
  } catch (...) {
    device_.set_capturing(false);
    static_cast<void>(recorder_.end());
    throw;
  }
  device_.set_capturing(false);
  return recorder_.end();
}

// Relaxed: other threads, and calls that touch no stream (a segment of memory, say), are free to do what they do.
void Graphs::record(Kept& kept) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "recording a graph");
  std::exception_ptr failure;
  try {
    for (const Command& command : kept.commands) {
      cudaGraphNode_t node = nullptr;
      if (command.kernel()) {
        command.launch(command, stream_);
        check(latest_node(stream_, &node), "recording a kernel");
      } else {
        command.enqueue(stream_);
      }
      kept.nodes.push_back(node);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const cudaError_t status = cudaStreamEndCapture(stream_, &kept.graph);
  if (failure) {
    static_cast<void>(cudaGetLastError());
    std::rethrow_exception(failure);
  }
  check(status, "recording a graph");
  check(cudaGraphInstantiate(&kept.exec, kept.graph, 0), "preparing a graph");
}

bool Graphs::set(Kept& kept, const std::vector<Command>& commands) {
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const Command& now = commands[i];
    if (now.bytes == kept.commands[i].bytes) {
      continue;
    }
    std::vector<void*> parameters = now.parameters();
    const cudaKernelNodeParams to{const_cast<void*>(now.what),       now.blocks,        now.threads,
                                  static_cast<unsigned>(now.shared), parameters.data(), nullptr};
    if (kept.nodes[i] == nullptr || cudaGraphExecKernelNodeSetParams(kept.exec, kept.nodes[i], &to) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    kept.commands[i].bytes = now.bytes;
  }
  return true;
}

}  // namespace orthant::cuda
