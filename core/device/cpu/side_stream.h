// A stream whose operations run, in order, on a thread of its own, concurrently with the calling thread.
//
// Failure: the first exception of an operation is kept and the stream stays failed: work behind it is skipped, and
// the exception is rethrown by every later call on the stream, by synchronize, and by wait of every event recorded
// behind it. The destructor runs what is queued (or skips it after a failure) and never throws.
#pragma once

#include "core/device/cpu/work_queue.h"
#include "core/device/forwarding_stream.h"

namespace orthant {

class SideStream : public ForwardingStream {
 public:
  // inner: a stream that runs its operations on the thread that calls it.
  explicit SideStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  Device& device() const override { return inner_->device(); }
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override;
  void synchronize() override;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  std::unique_ptr<Stream> inner_;
  WorkQueue queue_;  // last: what it runs needs the rest
};

}  // namespace orthant
