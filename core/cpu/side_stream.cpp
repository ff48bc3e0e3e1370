#include "core/cpu/side_stream.h"

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

SideStream::SideStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)), worker_([this] { run(); }) {}

SideStream::~SideStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

std::exception_ptr SideStream::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void SideStream::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void SideStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr caught;
    try {
      work();
    } catch (...) {
      caught = std::current_exception();
    }
    work = nullptr;  // its tensors are released here, outside the lock
    lock.lock();
    if (caught && !failure_) {
      failure_ = std::move(caught);
    }
  }
}

void SideStream::forward(const char*, std::initializer_list<Tensor>, Operation operation) {
  post([this, operation = std::move(operation)] {
    if (!failure()) {
      operation(*inner_);
    }
  });
}

std::shared_ptr<Event> SideStream::record() {
  auto event = std::make_shared<QueuedEvent>();
  post([this, event] { event->finish(failure()); });
  return event;
}

void SideStream::wait(const std::shared_ptr<Event>& event) {
  require(event != nullptr, "wait: the event is null");
  post([this, event] {
    if (!failure()) {
      event->wait();
    }
  });
}

void SideStream::host(std::function<void()> work) {
  post([this, work = std::move(work)] {
    if (!failure()) {
      work();
    }
  });
}

void SideStream::synchronize() {
  record()->wait();
}

}  // namespace orthant
