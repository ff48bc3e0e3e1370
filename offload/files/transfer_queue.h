// TransferQueue: transfers of any length between memory and one file, as blocks that an engine carries out, a number of
// them at a time.
//
// The first transfer to be started is the first to be served. What an operation leaves undone is done by another one,
// and what the system asks to try again is tried again.
//
// Failure: the first one is kept and the queue stays failed. The transfer fails with it once no block of it is in
// flight; what is not handed to the engine by then fails with the same words; every later start throws them.
// Thread safety: all of it from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io_engine.h"

namespace orthant::offload {

// One read or write that has been started. It may outlive the file. Thread safety: from any thread.
class Transfer {
 public:
  // Blocks until it has ended. From then on, failed or not, its memory is its caller's again.
  // Errors: Error with what has failed, at each call.
  void wait() const;
  // Whether it has ended, well or not: wait would not block.
  bool ready() const;

 private:
  friend class TransferQueue;
  void end(std::optional<std::string> failure);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool ended_ = false;
  std::optional<std::string> failure_;
};

// What failures say of the file.
struct FileWords {
  int rank = 0;
  std::string directory;
  std::string setting;  // the key that names the directory
};

class TransferQueue {
 public:
  struct Options {
    int file = -1;                    // the caller's, who closes it later
    std::int64_t block_bytes = 0;     // of one operation at most
    int depth = 0;                    // operations at a time
    std::int64_t granularity = 1;     // to which an operation may be continued: file_alignment with O_DIRECT
    std::int64_t expected_bytes = 0;  // the file's length
    FileWords words;
  };
  TransferQueue(std::unique_ptr<IoEngine> engine, Options options);
  // Waits for the blocks that are in flight; transfers that are not done by then fail. Throws nothing.
  ~TransferQueue();
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  // REQUIRES: what the file asks of offset, address and length; the memory stays until the transfer has ended.
  std::shared_ptr<Transfer> start(IoOperation::Kind kind, std::int64_t offset, std::byte* memory, std::int64_t bytes);
  const char* engine() const { return engine_->name(); }

 private:
  struct Work;
  struct Slot;

  void done(Slot& slot, std::int64_t result);
  void hand_out();  // this and the next two: with mutex_ held
  void fail_all(const std::string& failure);
  void finish_if_done(const Work& work) const;
  std::string words_of(const IoOperation& operation, std::int64_t result) const;

  const Options options_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<std::shared_ptr<Work>> waiting_;  // with bytes that are in no slot yet
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
  std::optional<std::string> failure_;
  std::unique_ptr<IoEngine> engine_;  // last: its threads call done
};

}  // namespace orthant::offload
