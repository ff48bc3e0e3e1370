#include "transfer_queue.h"

#include <orthant/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace orthant::offload {
namespace {

// How often an operation may be asked for again (EINTR, EAGAIN) without a byte of progress.
constexpr int patience = 100;

std::string advice(int error, const std::string& setting) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return fmt::format("Free some space there, or set {} to a directory of another disk.", setting);
    case EFBIG: return "Raise the limit of file sizes (ulimit -f), which was higher when the file was made.";
    default:
      return fmt::format(
          "The disk or its connection may be failing: the kernel's log (dmesg) says more. If it is, set {} "
          "to a directory of another disk.",
          setting);
  }
}

}  // namespace

void Transfer::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
  if (failure_) {
    throw Error(*failure_);
  }
}

bool Transfer::ready() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void Transfer::end(std::optional<std::string> failure) {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    failure_ = std::move(failure);
  }
  changed_.notify_all();
}

// The rest of a transfer that is in no slot yet.
struct TransferQueue::Work {
  std::shared_ptr<Transfer> transfer = std::make_shared<Transfer>();
  IoOperation::Kind kind = IoOperation::Kind::read;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  int in_flight = 0;  // blocks in slots
  std::optional<std::string> failure;
};

// A block that the engine has.
struct TransferQueue::Slot {
  IoOperation operation;
  std::shared_ptr<Work> work;
  int tries = 0;
};

TransferQueue::TransferQueue(std::unique_ptr<IoEngine> engine, Options options)
    : options_(std::move(options)), engine_(std::move(engine)) {
  for (int i = 0; i < options_.depth; ++i) {
    Slot* const slot = slots_.emplace_back(std::make_unique<Slot>()).get();
    slot->operation.file = options_.file;
    slot->operation.done = [this, slot](std::int64_t result) { done(*slot, result); };
    free_.push_back(slot);
  }
}

TransferQueue::~TransferQueue() {
  std::unique_lock lock(mutex_);
  fail_all(fmt::format("rank {}: the scratch file in '{}' was closed before the transfer was done", options_.words.rank,
                       options_.words.directory));
  idle_.wait(lock, [this] { return free_.size() == slots_.size(); });
}

std::shared_ptr<Transfer> TransferQueue::start(IoOperation::Kind kind, std::int64_t offset, std::byte* memory,
                                               std::int64_t bytes) {
  const auto work = std::make_shared<Work>();
  work->kind = kind;
  work->offset = offset;
  work->memory = memory;
  work->bytes = bytes;
  const std::lock_guard lock(mutex_);
  if (failure_) {
    throw Error(*failure_);
  }
  if (bytes > 0) {
    waiting_.push_back(work);
    hand_out();
  } else {
    work->transfer->end(std::nullopt);
  }
  return work->transfer;
}

void TransferQueue::hand_out() {
  while (!free_.empty() && !waiting_.empty()) {
    const std::shared_ptr<Work> work = waiting_.front();
    Slot& slot = *free_.back();
    free_.pop_back();
    const std::int64_t bytes = std::min(work->bytes, options_.block_bytes);
    slot.operation.kind = work->kind;
    slot.operation.offset = work->offset;
    slot.operation.memory = work->memory;
    slot.operation.bytes = bytes;
    slot.work = work;
    slot.tries = 0;
    work->offset += bytes;
    work->memory += bytes;
    work->bytes -= bytes;
    ++work->in_flight;
    if (work->bytes == 0) {
      waiting_.pop_front();
    }
    engine_->start(slot.operation);
  }
}

void TransferQueue::done(Slot& slot, std::int64_t result) {
  const std::lock_guard lock(mutex_);
  IoOperation& operation = slot.operation;
  const bool again = (result == -EINTR || result == -EAGAIN) && ++slot.tries < patience;
  // With O_DIRECT the next operation must begin at a whole block of the disk. Less than one is no progress: a read
  // gives that only at the end of a file.
  const std::int64_t progress = std::max<std::int64_t>(result, 0) / options_.granularity * options_.granularity;
  if (again || (progress > 0 && progress < operation.bytes)) {
    slot.tries = again ? slot.tries : 0;
    operation.offset += progress;
    operation.memory += progress;
    operation.bytes -= progress;
    engine_->start(operation);
    return;
  }
  const std::shared_ptr<Work> work = std::move(slot.work);
  free_.push_back(&slot);
  if (progress < operation.bytes) {
    fail_all(words_of(operation, result));
    work->failure = failure_;
  }
  --work->in_flight;
  finish_if_done(*work);
  hand_out();
  if (free_.size() == slots_.size()) {
    idle_.notify_all();
  }
}

void TransferQueue::fail_all(const std::string& failure) {
  if (!failure_) {
    failure_ = failure;
  }
  for (const std::shared_ptr<Work>& work : std::exchange(waiting_, {})) {
    work->bytes = 0;
    work->failure = failure_;
    finish_if_done(*work);
  }
}

void TransferQueue::finish_if_done(const Work& work) const {
  if (work.bytes == 0 && work.in_flight == 0) {
    work.transfer->end(work.failure);
  }
}

std::string TransferQueue::words_of(const IoOperation& operation, std::int64_t result) const {
  const FileWords& words = options_.words;
  const std::string what = fmt::format("rank {}: cannot {} {} bytes at offset {} of its scratch file in '{}'",
                                       words.rank, operation.kind == IoOperation::Kind::read ? "read" : "write",
                                       operation.bytes, operation.offset, words.directory);
  if (result < 0) {
    const int error = static_cast<int>(-result);
    return fmt::format("{}: {}. {}", what, std::generic_category().message(error), advice(error, words.setting));
  }
  struct stat status {};
  const std::int64_t found = ::fstat(options_.file, &status) == 0 ? status.st_size : 0;
  if (found < options_.expected_bytes) {
    return fmt::format(
        "{}: the file has {} bytes, expected {}. Something has cut it while the run was using it; "
        "start the run again.",
        what, found, options_.expected_bytes);
  }
  return fmt::format("{}: the system did {} bytes and gave no reason. {}", what, result, advice(EIO, words.setting));
}

}  // namespace orthant::offload
