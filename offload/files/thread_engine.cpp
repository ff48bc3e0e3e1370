#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io_engine.h"

namespace orthant::offload {
namespace {

std::int64_t carry_out(const IoOperation& operation) {
  const auto bytes = static_cast<std::size_t>(operation.bytes);
  const ssize_t done = operation.kind == IoOperation::Kind::read
                           ? ::pread(operation.file, operation.memory, bytes, operation.offset)
                           : ::pwrite(operation.file, operation.memory, bytes, operation.offset);
  return done < 0 ? -errno : done;
}

class ThreadEngine final : public IoEngine {
 public:
  explicit ThreadEngine(int threads) {
    try {
      for (int i = 0; i < threads; ++i) {
        threads_.emplace_back([this] { run(); });
      }
    } catch (const std::system_error&) {  // no more threads are permitted: fewer do, more slowly
      if (threads_.empty()) {
        throw;
      }
    }
  }
  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  ThreadEngine(const ThreadEngine&) = delete;
  ThreadEngine& operator=(const ThreadEngine&) = delete;

  void start(IoOperation& operation) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(&operation);
    }
    changed_.notify_one();
  }
  const char* name() const override { return "threads"; }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      IoOperation& operation = *queue_.front();
      queue_.pop_front();
      lock.unlock();
      operation.done(carry_out(operation));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<IoOperation*> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_engine(int threads) {
  return std::make_unique<ThreadEngine>(threads);
}

}  // namespace orthant::offload
