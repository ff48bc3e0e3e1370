// FileThread: work on files beside the training, one piece after another, on a thread of its own.
#pragma once

#include <orthant/error.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "core/checkpoint/disk.h"

namespace orthant {

// A disk that has not answered within the time that it has. Whoever catches it touches the disk no more.
class DiskSilent : public Error {
 public:
  explicit DiskSilent(std::string message) : Error(std::move(message)) {}
};

// Thread safety: one thread calls. The work is done by another one: it makes no collective, and touches no stream.
class FileThread {
 public:
  using Work = std::function<std::string()>;

  // Work that takes longer than `limit_seconds` counts as never answered.
  FileThread(double limit_seconds, const Disk& disk);
  // Gives up.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  // The one that it was given. Its operations throw while work is given up that has not ended.
  const Disk& disk() const;

  // REQUIRES: nothing is under way, and what was before has been taken. Errors: Error where no thread can be started.
  void start(Work work);
  // Whether the work has not ended. Errors: DiskSilent where it is beyond its limit.
  bool busy() const;
  // Waits until it has ended, at most so long.
  void wait_for(double seconds) const;
  // Waits until it has ended, and returns what it has; throws what it threw. Errors: DiskSilent too.
  std::string take();
  // When the work that was taken last began and ended.
  struct Times {
    std::chrono::steady_clock::time_point begin, end;
    double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
  };
  Times times() const { return times_; }

  // The work is wanted no more: it is told so, and waited for a moment. False where it goes on even so, as on a disk
  // that does not answer: what it uses must then stay to the end of the process, up to its next operation of disk().
  // Nothing can be started afterwards.
  bool give_up();

 private:
  struct Shared;
  Shared* shared_;  // of the thread too, which may outlive this one
  std::thread thread_;
  bool over_ = false;  // nothing is started any more
  bool left_ = false;  // the thread, to itself: it has not ended
  Times times_;
};

}  // namespace orthant
