#include "core/device/cpu/work_queue.h"

#include <utility>

namespace orthant {

WorkQueue::WorkQueue(std::function<void()> at_start) {
  queue_.emplace_back([at_start = std::move(at_start)](const std::exception_ptr&) { at_start(); });
  worker_ = std::thread([this] { run(); });
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void WorkQueue::post(std::function<void()> work) {
  post_always([work = std::move(work)](const std::exception_ptr& failure) {
    if (!failure) {
      work();
    }
  });
}

void WorkQueue::post_always(std::function<void(std::exception_ptr)> work) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    std::function<void(std::exception_ptr)> work = std::move(queue_.front());
    queue_.pop_front();
    const std::exception_ptr failure = failure_;
    lock.unlock();
    std::exception_ptr caught;
    try {
      work(failure);
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

}  // namespace orthant
