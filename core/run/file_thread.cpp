#include "core/run/file_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double longest_limit = 1e9;              // that a clock can add
constexpr std::chrono::seconds to_be_given_up{5};  // for an operation that is under way

Disk guarded(const Disk& disk, const std::shared_ptr<std::atomic<bool>>& given_up) {
  return Disk([disk, given_up](std::string_view operation, const std::filesystem::path& path) {
    require(!*given_up, "'{}' is written no further: the run has ended", path.string());
    disk.before(operation, path);
  });
}

}  // namespace

struct FileThread::Shared {
  const Seconds limit;
  const std::shared_ptr<std::atomic<bool>> given_up = std::make_shared<std::atomic<bool>>(false);
  const Disk disk;

  std::mutex mutex = {};
  std::condition_variable ended = {};
  bool under_way = false;
  Clock::time_point begin = {}, end = {};
  Work work = {};
  std::string made = {};
  std::exception_ptr failure = {};

  Shared(double limit_seconds, const Disk& of)
      : limit(std::min(limit_seconds, longest_limit)), disk(guarded(of, given_up)) {}

  void run() {
    std::string result;
    std::exception_ptr error;
    try {
      result = work();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    made = std::move(result);
    failure = error;
    end = Clock::now();
    under_way = false;
    ended.notify_all();
  }
  Clock::time_point last() const { return begin + std::chrono::duration_cast<Clock::duration>(limit); }
  [[noreturn]] void silent() const {
    throw DiskSilent(fmt::format("the disk has not taken a checkpoint's file within run.disk_timeout_seconds = {:g} s",
                                 limit.count()));
  }
};

FileThread::FileThread(double limit_seconds, const Disk& disk) : shared_(new Shared(limit_seconds, disk)) {}

FileThread::~FileThread() {
  if (give_up()) {
    delete shared_;
  }
}

const Disk& FileThread::disk() const {
  return shared_->disk;
}

void FileThread::start(Work work) {
  require(!thread_.joinable() && !over_, "internal error: work on files begins before other has ended");
  shared_->work = std::move(work);
  shared_->begin = Clock::now();
  shared_->under_way = true;
  try {
    thread_ = std::thread([shared = shared_] { shared->run(); });
  } catch (const std::system_error& error) {
    shared_->under_way = false;
    shared_->work = {};
    fail("no thread can be started to write a checkpoint beside the training: {}", error.what());
  }
}

bool FileThread::busy() const {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->under_way && Clock::now() > shared_->last()) {
    shared_->silent();
  }
  return shared_->under_way;
}

void FileThread::wait_for(double seconds) const {
  std::unique_lock lock(shared_->mutex);
  shared_->ended.wait_for(lock, Seconds(seconds), [this] { return !shared_->under_way; });
}

std::string FileThread::take() {
  require(thread_.joinable(), "internal error: no work on files was begun");
  {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->ended.wait_until(lock, shared_->last(), [this] { return !shared_->under_way; })) {
      shared_->silent();
    }
  }
  thread_.join();
  shared_->work = {};
  times_ = {shared_->begin, shared_->end};
  if (shared_->failure != nullptr) {
    std::rethrow_exception(std::exchange(shared_->failure, nullptr));
  }
  return std::move(shared_->made);
}

bool FileThread::give_up() {
  over_ = true;
  if (!thread_.joinable()) {
    return !left_;
  }
  *shared_->given_up = true;
  wait_for(Seconds(to_be_given_up).count());
  std::unique_lock lock(shared_->mutex);
  left_ = shared_->under_way;
  lock.unlock();
  if (left_) {
    thread_.detach();
  } else {
    thread_.join();
    *shared_->given_up = false;
  }
  return !left_;
}

}  // namespace orthant
