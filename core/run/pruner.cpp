#include "core/run/pruner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>
#include <utility>

namespace orthant {

using Clock = std::chrono::steady_clock;
constexpr double longest_seconds = 1e9;  // that a clock can add

struct Pruner::Shared {
  const std::filesystem::path root;
  const KeptCheckpoints kept;
  const std::chrono::duration<double> limit;
  const Disk disk;

  std::mutex mutex = {};
  std::condition_variable ended = {};
  bool under_way = false;
  Clock::time_point begin = {};
  std::vector<std::string> warnings = {};

  void warn(const std::string& reason) {
    warnings.push_back(fmt::format("old checkpoints of {} stay: {}", root.string(), reason));
  }
  void prune(std::int64_t saved) {
    std::string failure;
    try {
      prune_checkpoints(root, kept, disk, saved);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    const std::lock_guard lock(mutex);
    if (!failure.empty()) {
      warn(failure);
    }
    under_way = false;
    ended.notify_all();
  }
};

Pruner::Pruner(std::filesystem::path root, KeptCheckpoints kept, double limit_seconds, Disk disk)
    : shared_(new Shared{.root = std::move(root),
                         .kept = kept,
                         .limit = std::chrono::duration<double>(std::min(limit_seconds, longest_seconds)),
                         .disk = std::move(disk)}) {}

Pruner::~Pruner() {
  if (thread_.joinable()) {
    std::unique_lock lock(shared_->mutex);
    const bool under_way = shared_->under_way;
    lock.unlock();
    under_way ? thread_.detach() : thread_.join();
  }
}

void Pruner::start(std::int64_t saved) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->under_way) {
    return;
  }
  shared_->under_way = true;
  shared_->begin = Clock::now();
  lock.unlock();
  if (thread_.joinable()) {
    thread_.join();  // it has ended
  }
  try {
    thread_ = std::thread([shared = shared_, saved] { shared->prune(saved); });
  } catch (const std::system_error& error) {
    lock.lock();
    shared_->under_way = false;
    shared_->warn(fmt::format("no thread can be started to remove them: {}", error.what()));
  }
}

void Pruner::wait() {
  std::unique_lock lock(shared_->mutex);
  const auto last = shared_->begin + std::chrono::duration_cast<Clock::duration>(shared_->limit);
  if (!shared_->ended.wait_until(lock, last, [this] { return !shared_->under_way; })) {
    shared_->warn(fmt::format("the disk has not removed them within {} s", shared_->limit.count()));
  }
}

std::vector<std::string> Pruner::take_warnings() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->warnings, {});
}

}  // namespace orthant
