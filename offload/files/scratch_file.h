// ScratchFile: one rank's private file for tensors that live on a disk between uses.
//
// The file has no name (or loses it at once), is readable by its user alone, and is gone with the process, however that
// ends. Its whole room is taken when it is made, so that a disk that is too small is met before training starts.
// Nothing is synced: it outlives no power failure and is to outlive none. What a range holds that was never written is
// unspecified.
//
// Ownership: the file is this object's. The memory of a transfer is its caller's and stays, unchanged and for a read
// unread, until the transfer has ended, also where nobody waits for it.
// Order: transfers run beside each other. Of two whose ranges overlap, wait for the first before the second is started.
// Failure: a transfer that fails throws from its wait; all that are started later throw the same at once, and what had
// not been begun fails with it. A failure that nobody waited for is so told by the next call.
// Thread safety: read and write from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "aligned_buffer.h"
#include "transfer_queue.h"

namespace orthant::offload {

// any: io_uring, or threads where io_uring cannot be had.
enum class Engine { any, uring, threads };

struct ScratchFileOptions {
  std::string directory;                              // it exists already
  std::int64_t bytes = 0;                             // the file's size, a multiple of file_alignment
  int rank = 0;                                       // whose it is, for messages
  std::string setting = "plugins.offload.directory";  // the key that names the directory, for messages
  Engine engine = Engine::any;
  std::int64_t block_bytes = std::int64_t{1} << 20;  // larger transfers are split; a multiple of file_alignment
  int depth = 16;                                    // blocks that are at the disk at a time
};

class ScratchFile {
 public:
  // Errors: SettingError where the directory cannot be written in or has too little room: how much was needed, how much
  // there is, whose rank, what to do. Error where Engine::uring is asked for and cannot be had.
  explicit ScratchFile(const ScratchFileOptions& options);
  // On an engine for at least options.depth operations, for tests.
  ScratchFile(const ScratchFileOptions& options, std::unique_ptr<IoEngine> engine);
  // Waits for the blocks that are at the disk; transfers that are not done by then fail. Throws nothing.
  ~ScratchFile() = default;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Both start at once and return at once.
  // REQUIRES: offset, bytes and the address are multiples of file_alignment; the range is within the file.
  std::shared_ptr<Transfer> write(std::int64_t offset, const std::byte* from, std::int64_t bytes);
  std::shared_ptr<Transfer> read(std::int64_t offset, std::byte* to, std::int64_t bytes);

  std::int64_t bytes() const { return bytes_; }
  const char* engine() const { return queue_->engine(); }            // "io_uring" or "threads"
  const std::string& why_no_uring() const { return why_no_uring_; }  // empty where it was not refused
  bool direct() const { return direct_; }      // past the page cache (O_DIRECT); false: the file system cannot
  bool reserved() const { return reserved_; }  // false: its room is not taken (no fallocate there), it may yet run out

 private:
  class File {
   public:
    File() = default;
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int descriptor = -1;
  };

  void make(const ScratchFileOptions& options);
  void reserve(const ScratchFileOptions& options);
  void try_direct(const ScratchFileOptions& options);
  void start_queue(const ScratchFileOptions& options, std::unique_ptr<IoEngine> engine);
  std::shared_ptr<Transfer> start(IoOperation::Kind kind, std::int64_t offset, std::byte* memory, std::int64_t bytes);

  int rank_ = 0;
  std::int64_t bytes_ = 0;
  bool direct_ = false;
  bool reserved_ = false;
  std::string why_no_uring_;
  File file_;
  std::unique_ptr<TransferQueue> queue_;  // last: it uses the file
};

}  // namespace orthant::offload
