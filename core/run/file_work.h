// FileWork: a rank that reads or writes files is alive, however slow the disk is.
#pragma once

#include <orthant/group.h>

#include <thread>

namespace orthant {

// While it lives, a thread of its own beats for this rank, so that ranks which wait for it do not take a slow disk for
// a stuck rank. A stopped process stops beating, and after `limit_seconds` nobody beats any more: a disk that never
// answers ends the run by the ordinary timeout.
class FileWork {
 public:
  // REQUIRES: `communicator` outlives it; limit_seconds > 0 (run.disk_timeout_seconds).
  FileWork(Communicator& communicator, double limit_seconds);

 private:
  std::jthread thread_;  // ends when this does
};

}  // namespace orthant
