#include "core/device/cuda/side_stream.h"

#include <algorithm>

#include "core/device/cuda/launch.h"

namespace orthant::cuda {

CudaSideStream::CudaSideStream(CudaDevice& device) : device_(device) {
  // First to get a multiprocessor that becomes free: side streams carry messages and copies, which others wait for,
  // and the main stream's products leave no room for them by themselves.
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking the GPU");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "making a stream");
  kept_ = std::make_shared<KeptTensors>(stream_, device.events());
  own_.emplace(device, stream_);
  inner_ = std::make_unique<CudaStream>(*own_, stream_);
  device.add(kept_);
}

CudaSideStream::~CudaSideStream() {
  queue_.reset();
  device_.release_thread(thread_);
  static_cast<void>(cudaStreamSynchronize(stream_));
  kept_.reset();
  inner_.reset();
  own_.reset();
  static_cast<void>(cudaStreamDestroy(stream_));
}

void CudaSideStream::start_thread() {
  if (queue_ != nullptr) {
    return;
  }
  queue_ = std::make_unique<WorkQueue>([this] {
    thread_ = std::this_thread::get_id();
    device_.adopt_thread(stream_);
  });
}

void CudaSideStream::enqueue(std::function<void()> work) {
  if (queue_ != nullptr) {
    queue_->post(std::move(work));
  } else {
    work();
  }
}

std::shared_ptr<CudaEvent> CudaSideStream::behind(std::initializer_list<Tensor> tensors) {
  std::uint64_t latest = 0;
  for (const Tensor& t : tensors) {
    if (t.defined()) {
      latest = std::max(latest, device_.allocation_of(t));
    }
  }
  if (latest <= covered_) {
    return nullptr;
  }
  device_.require_not_capturing("work of another stream");
  covered_ = device_.allocations();  // before the event: what is counted here is before it
  auto event = std::make_shared<CudaEvent>(device_.events(), covered_);
  event->record(device_.main());
  return event;
}

void CudaSideStream::forward(const char*, std::initializer_list<Tensor> tensors, Operation operation) {
  enqueue([this, event = behind(tensors), held = std::vector<Tensor>(tensors), operation = std::move(operation)] {
    if (event != nullptr) {
      event->before(stream_);
    }
    operation(*inner_);
    kept_->keep(held);
  });
  if (queue_ == nullptr) {
    kept_->collect();
  }
}

void CudaSideStream::uses(std::initializer_list<Tensor> tensors) {
  if (queue_ != nullptr) {
    synchronize();  // the caller enqueues next: behind all that the thread was given
  }
  if (const auto event = behind(tensors)) {
    event->before(stream_);
  }
  kept_->open(tensors);
}

std::shared_ptr<Event> CudaSideStream::record() {
  auto event = std::make_shared<CudaEvent>(device_.events(), covered_);
  if (queue_ != nullptr) {
    queue_->post_always([this, event](std::exception_ptr failure) {
      failure != nullptr ? event->fail(std::move(failure)) : event->record(stream_);
    });
  } else {
    kept_->close();
    event->record(stream_);
  }
  return event;
}

void CudaSideStream::wait(const std::shared_ptr<Event>& event) {
  require(event != nullptr, "wait: the event is null");
  const auto here = std::dynamic_pointer_cast<CudaEvent>(event);
  if (here == nullptr || !here->recorded()) {
    start_thread();  // which may block
  }
  if (here == nullptr) {
    enqueue([event] { event->wait(); });
    return;
  }
  covered_ = std::max(covered_, here->covers());
  enqueue([this, here] { here->before(stream_); });
}

void CudaSideStream::host(std::function<void()> work) {
  kept_->close();
  start_thread();
  queue_->post([this, work = std::move(work)] {
    check(cudaStreamSynchronize(stream_), "waiting for the stream");
    kept_->collect();
    work();
  });
}

void CudaSideStream::synchronize() {
  record()->wait();
  kept_->collect();
}

}  // namespace orthant::cuda
