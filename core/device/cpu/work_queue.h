// A thread that runs closures in the order in which they are posted.
//
// Failure: the first exception is kept and the queue stays failed: work behind it is skipped, and every later post
// rethrows it. The destructor runs what is queued (or skips it after a failure) and never throws.
// Thread safety: post from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace orthant {

class WorkQueue {
 public:
  // at_start runs on the thread before everything else.
  explicit WorkQueue(std::function<void()> at_start = [] {});
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void post(std::function<void()> work);
  // Not skipped after a failure, but told of it (null: none).
  void post_always(std::function<void(std::exception_ptr failure)> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(std::exception_ptr)>> queue_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread worker_;  // last: starts when all else is ready
};

}  // namespace orthant
