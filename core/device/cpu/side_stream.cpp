#include "core/device/cpu/side_stream.h"

#include <condition_variable>
#include <exception>
#include <mutex>

namespace orthant {
namespace {

// Becomes ready when the worker reaches it.
class QueuedEvent : public Event {
 public:
  bool ready() const override {
    std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }
  void finish(std::exception_ptr failure) {
    std::lock_guard lock(mutex_);
    done_ = true;
    failure_ = std::move(failure);
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr failure_;
};

}  // namespace

void SideStream::forward(const char*, std::initializer_list<Tensor>, Operation operation) {
  queue_.post([this, operation = std::move(operation)] { operation(*inner_); });
}

std::shared_ptr<Event> SideStream::record() {
  auto event = std::make_shared<QueuedEvent>();
  queue_.post_always([event](std::exception_ptr failure) { event->finish(std::move(failure)); });
  return event;
}

void SideStream::wait(const std::shared_ptr<Event>& event) {
  require(event != nullptr, "wait: the event is null");
  queue_.post([event] { event->wait(); });
}

void SideStream::host(std::function<void()> work) {
  queue_.post(std::move(work));
}

void SideStream::synchronize() {
  record()->wait();
}

}  // namespace orthant
