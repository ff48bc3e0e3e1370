// Pruner: old checkpoints are removed beside the training. A disk that is slow to do so holds up no rank, and one that
// cannot ends no run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"

namespace orthant {

// Thread safety: one thread calls, of rank 0.
class Pruner {
 public:
  // Of the checkpoints under `root` those of `kept` stay. A prune that takes longer than `limit_seconds` is waited
  // for no more.
  Pruner(std::filesystem::path root, KeptCheckpoints kept, double limit_seconds, Disk disk = Disk());
  // Does not wait: what a prune leaves, the next one removes.
  ~Pruner();
  Pruner(const Pruner&) = delete;
  Pruner& operator=(const Pruner&) = delete;

  // Begins a prune, after the checkpoint of step `saved` was written; where one is still under way, none is begun.
  void start(std::int64_t saved);
  // Until no prune is under way, or the one that is has reached its limit.
  void wait();
  // One for each prune that failed or was given up since the last call, with path and reason.
  std::vector<std::string> take_warnings();

 private:
  struct Shared;  // with the thread, which may outlive this where a disk never answers
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace orthant
