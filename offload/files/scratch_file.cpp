#include "scratch_file.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

namespace orthant::offload {
namespace {

// Of the engine without io_uring: 4 and 16 were as fast on the disk that was measured.
constexpr int most_threads = 8;

[[noreturn]] void refuse(const ScratchFileOptions& options, const std::string& why) {
  throw SettingError(options.setting, fmt::format("rank {}: {}", options.rank, why));
}

[[noreturn]] void cannot_make(const ScratchFileOptions& options, int error) {
  refuse(options, fmt::format("cannot make a scratch file in '{}': {}. Make a directory there that this user may write "
                              "in, on every machine, or set {} to another one.",
                              options.directory, std::generic_category().message(error), options.setting));
}

// Bytes as a person reads them beside the exact number.
std::string readable(std::int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (std::int64_t{1} << 20);
  return mib < 1024 ? fmt::format("{} bytes ({:.1f} MiB)", bytes, mib)
                    : fmt::format("{} bytes ({:.1f} GiB)", bytes, mib / 1024);
}

// Of the file system for this user; -1 where it does not say.
std::int64_t free_bytes(int file) {
  struct statvfs status {};
  if (::fstatvfs(file, &status) != 0 || status.f_blocks == 0) {
    return -1;
  }
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

[[noreturn]] void refuse_room(const ScratchFileOptions& options, std::int64_t free, int error) {
  refuse(options,
         fmt::format(
             "its scratch file in '{}' needs {}, and {} there: {}. Free some space there, set {} to a directory of "
             "a larger disk, or keep less on the disk. Ranks of one machine add up.",
             options.directory, readable(options.bytes),
             free < 0 ? "less is free" : fmt::format("{} are free", readable(free)),
             std::generic_category().message(error), options.setting));
}

void require_options(const ScratchFileOptions& options) {
  require(options.bytes >= 0 && options.bytes % file_alignment == 0,
          "scratch file: {} bytes, expected a multiple of {}", options.bytes, file_alignment);
  require(options.block_bytes > 0 && options.block_bytes % file_alignment == 0 &&
              options.block_bytes <= (std::int64_t{1} << 30),
          "scratch file: blocks of {} bytes, expected a multiple of {} up to 1 GiB", options.block_bytes,
          file_alignment);
  require(options.depth > 0 && options.depth <= 1024, "scratch file: a depth of {}, expected 1 to 1024", options.depth);
}

}  // namespace

ScratchFile::File::~File() {
  if (descriptor >= 0) {
    ::close(descriptor);
  }
}

ScratchFile::ScratchFile(const ScratchFileOptions& options) {
  make(options);
  std::unique_ptr<IoEngine> engine;
  if (options.engine != Engine::threads) {
    engine = make_uring_engine(options.depth, why_no_uring_);
    require(engine != nullptr || options.engine == Engine::any, "rank {}: io_uring was asked for and cannot be had: {}",
            options.rank, why_no_uring_);
  }
  if (!engine) {
    engine = make_thread_engine(std::min(options.depth, most_threads));
  }
  start_queue(options, std::move(engine));
}

ScratchFile::ScratchFile(const ScratchFileOptions& options, std::unique_ptr<IoEngine> engine) {
  make(options);
  start_queue(options, std::move(engine));
}

void ScratchFile::make(const ScratchFileOptions& options) {
  require_options(options);
  rank_ = options.rank;
  bytes_ = options.bytes;
  // O_EXCL: nobody may give it a name later.
  file_.descriptor = ::open(options.directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (file_.descriptor < 0) {
    if (errno != EOPNOTSUPP && errno != EISDIR) {
      cannot_make(options, errno);
    }
    // A file system without nameless files. One that is killed in between leaves an empty file.
    std::string name = fmt::format("{}/.orthant_offload_rank_{}_XXXXXX", options.directory, options.rank);
    file_.descriptor = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_.descriptor < 0 || ::unlink(name.c_str()) != 0) {
      cannot_make(options, errno);
    }
  }
  if (bytes_ > 0) {
    reserve(options);
    try_direct(options);
  }
}

void ScratchFile::reserve(const ScratchFileOptions& options) {
  // Past the limit of file sizes the system would send SIGXFSZ, which ends the process without a word.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(bytes_) > limit.rlim_cur) {
    refuse(options,
           fmt::format("its scratch file in '{}' needs {}, files may have {} at most: raise the limit of file "
                       "sizes (ulimit -f), or keep less on the disk.",
                       options.directory, readable(bytes_), readable(static_cast<std::int64_t>(limit.rlim_cur))));
  }
  // Asked first: some file systems fill the disk before they find that it does not suffice.
  std::int64_t free = free_bytes(file_.descriptor);
  if (free >= 0 && free < bytes_) {
    refuse_room(options, free, ENOSPC);
  }
  int error = 0;
  do {
    error = ::fallocate(file_.descriptor, 0, 0, bytes_) == 0 ? 0 : errno;
  } while (error == EINTR);
  reserved_ = error == 0;
  if (error == EOPNOTSUPP || error == ENOSYS) {
    error = ::ftruncate(file_.descriptor, bytes_) == 0 ? 0 : errno;
  }
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    // What it took on the way is given back, so that the number told is that of before. Failing, it is a smaller one.
    [[maybe_unused]] const int ignored = ::ftruncate(file_.descriptor, 0);
    free = free_bytes(file_.descriptor);
    refuse_room(options, free, error);
  } else if (error != 0) {
    cannot_make(options, error);
  }
}

void ScratchFile::try_direct(const ScratchFileOptions& options) {
  const int flags = ::fcntl(file_.descriptor, F_GETFL);
  direct_ = ::fcntl(file_.descriptor, F_SETFL, flags | O_DIRECT) == 0;
  // Some take the flag and refuse the operation, so one is tried.
  AlignedBuffer block(file_alignment);
  std::memset(block.data(), 0, file_alignment);
  for (;;) {
    const ssize_t done = ::pwrite(file_.descriptor, block.data(), file_alignment, 0);
    const int error = done < 0 ? errno : EIO;
    if (done == file_alignment) {
      return;
    } else if (error == EINVAL && direct_) {
      direct_ = false;
      ::fcntl(file_.descriptor, F_SETFL, flags);
    } else if (error != EINTR) {
      cannot_make(options, error);
    }
  }
}

void ScratchFile::start_queue(const ScratchFileOptions& options, std::unique_ptr<IoEngine> engine) {
  queue_ = std::make_unique<TransferQueue>(
      std::move(engine),
      TransferQueue::Options{.file = file_.descriptor,
                             .block_bytes = options.block_bytes,
                             .depth = options.depth,
                             .granularity = direct_ ? file_alignment : 1,
                             .expected_bytes = bytes_,
                             .words = {.rank = rank_, .directory = options.directory, .setting = options.setting}});
}

std::shared_ptr<Transfer> ScratchFile::write(std::int64_t offset, const std::byte* from, std::int64_t bytes) {
  return start(IoOperation::Kind::write, offset, const_cast<std::byte*>(from), bytes);
}

std::shared_ptr<Transfer> ScratchFile::read(std::int64_t offset, std::byte* to, std::int64_t bytes) {
  return start(IoOperation::Kind::read, offset, to, bytes);
}

std::shared_ptr<Transfer> ScratchFile::start(IoOperation::Kind kind, std::int64_t offset, std::byte* memory,
                                             std::int64_t bytes) {
  require(
      offset >= 0 && bytes >= 0 && offset <= bytes_ && bytes <= bytes_ - offset && offset % file_alignment == 0 &&
          bytes % file_alignment == 0 && is_aligned(memory),
      "rank {}: a {} of {} bytes at offset {} of a scratch file of {} bytes, memory at {}: expected multiples of {} "
      "within the file",
      rank_, kind == IoOperation::Kind::read ? "read" : "write", bytes, offset, bytes_,
      static_cast<const void*>(memory), file_alignment);
  return queue_->start(kind, offset, memory, bytes);
}

}  // namespace orthant::offload
