// A stream whose operations run, in order, on a thread of its own, concurrently with the calling thread.
//
// Failure: the first exception of an operation is kept and the stream stays failed: work behind it is skipped, and
// the exception is rethrown by every later call on the stream, by synchronize, and by wait of every event recorded
// behind it. The destructor runs what is queued (or skips it after a failure) and never throws.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/cpu/forwarding_stream.h"

namespace orthant {

class SideStream : public ForwardingStream {
 public:
  // inner: a stream that runs its operations on the thread that calls it.
  explicit SideStream(std::unique_ptr<Stream> inner);
  ~SideStream() override;

  Device& device() const override { return inner_->device(); }
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override;
  void synchronize() override;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  void post(std::function<void()> work);
  void run();
  std::exception_ptr failure() const;

  std::unique_ptr<Stream> inner_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread worker_;  // last: starts when all else is ready
};

}  // namespace orthant
