// Order: events, waiting, host work; and working memory.
#include "core/cuda/cuda_stream.h"

#include "core/cuda/launch.h"

namespace orthant::cuda {
namespace {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
    check(cudaEventRecord(event_, stream), "recording an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  bool ready() const override { return cudaEventQuery(event_) == cudaSuccess; }
  void wait() override { check(cudaEventSynchronize(event_), "waiting for an event"); }
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

CudaStream::CudaStream(CudaDevice& device, cudaStream_t stream) : device_(device), stream_(stream) {}
CudaStream::~CudaStream() = default;

std::shared_ptr<Event> CudaStream::record() {
  return std::make_shared<CudaEvent>(stream_);
}

void CudaStream::wait(const std::shared_ptr<Event>& event) {
  require(event != nullptr, "wait: the event is null");
  check(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(*event).handle(), 0), "waiting for an event");
}

void CudaStream::host(std::function<void()> work) {
  synchronize();
  work();
}

void CudaStream::synchronize() {
  check(cudaStreamSynchronize(stream_), "waiting for the stream");
}

void* CudaStream::scratch(int slot, std::size_t bytes) {
  Tensor& buffer = scratch_.at(static_cast<std::size_t>(slot));
  if (!buffer.defined() || buffer.bytes() < bytes) {
    buffer = device_.empty(DType::u8, {static_cast<std::int64_t>(bytes)});
  }
  return buffer.data();
}

}  // namespace orthant::cuda
