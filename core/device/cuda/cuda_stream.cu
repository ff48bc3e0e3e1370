// Order: events, waiting, host work; what moves between host and device; and working memory.
#include "core/device/cuda/cuda_stream.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/device/cuda/cuda_event.h"
#include "core/device/cuda/launch.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {

CudaStream::CudaStream(CudaDevice& device, cudaStream_t stream)
    : device_(device),
      graphs_(device, stream),
      stream_(stream, graphs_.recorder()),
      uploads_(device.pinned(), *device.events(), stream_) {}

CudaStream::~CudaStream() = default;

std::shared_ptr<Event> CudaStream::record() {
  device_.require_not_capturing("an event is recorded");
  auto event = std::make_shared<CudaEvent>(device_.events(), device_.allocations());
  event->record(stream_);
  return event;
}

void CudaStream::wait(const std::shared_ptr<Event>& event) {
  require(event != nullptr, "wait: the event is null");
  device_.require_not_capturing("an event is waited for");
  if (auto* const here = dynamic_cast<CudaEvent*>(event.get())) {
    here->before(stream_);
  } else {
    event->wait();
  }
}

void CudaStream::host(std::function<void()> work) {
  device_.require_not_capturing("host work");
  synchronize();
  work();
}

void CudaStream::synchronize() {
  device_.require_not_capturing("synchronize");
  check(cudaStreamSynchronize(stream_), "waiting for the stream");
}

void CudaStream::together(const std::function<void()>& work) {
  graphs_.launch(work);
}

void CudaStream::to_device(void* to, const void* host, std::size_t bytes) {
  uploads_.copy(to, host, bytes);
}

void CudaStream::to_host(void* host, const void* from, std::size_t bytes) {
  device_.require_not_capturing("download");
  if (bytes > 0) {
    check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_),
          fmt::format("copying {} bytes to the host", bytes));
  }
  synchronize();
}

void CudaStream::upload(const Tensor& to, const void* host) {
  require_defined("upload", "to", to);
  to_device(to.data(), host, to.bytes());
}

void CudaStream::download(void* host, const Tensor& from) {
  require_defined("download", "from", from);
  to_host(host, from.data(), from.bytes());
}

void CudaStream::upload(const Tensor& to, const Tensor& from_host) {
  check_transfer("upload", from_host, to);
  if (to.bytes() > 0) {
    copy_bytes(stream_, to.data(), from_host.data(), to.bytes(), cudaMemcpyHostToDevice);
  }
}

void CudaStream::download(const Tensor& to_host, const Tensor& from) {
  check_transfer("download", to_host, from);
  if (from.bytes() > 0) {
    copy_bytes(stream_, to_host.data(), from.data(), from.bytes(), cudaMemcpyDeviceToHost);
  }
}

void* CudaStream::scratch(int slot, std::size_t bytes) {
  Tensor& buffer = scratch_.at(slot);
  if (!buffer.defined() || buffer.bytes() < bytes) {
    buffer = {};  // before the larger one is there
    buffer = device_.empty(DType::u8, {static_cast<std::int64_t>(bytes)});
  }
  return buffer.data();
}

unsigned* CudaStream::counters(std::int64_t words) {
  if (!counters_.defined() || counters_.elements() < words) {
    counters_ = {};
    counters_ = device_.empty(DType::i32, {std::max<std::int64_t>(words, 64)});
    // At once, as a list may come to nothing; and in the list's order, as what is before it may write there.
    check(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream_.handle()), "setting counters to 0");
    if (stream_.lists() != nullptr) {
      fill(counters_, 0);
    }
  }
  return reinterpret_cast<unsigned*>(counters_.data());
}

}  // namespace orthant::cuda
