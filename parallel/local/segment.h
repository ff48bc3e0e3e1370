// LocalSegment: the shared memory of one world of local ranks, and the word on who is alive.
//
// One memfd, mapped by every rank (threads share the mapping). It is large and sparse: pages are committed when
// first touched, and the kernel frees everything when the last process is gone, killed or not; no name is left
// anywhere. Layout: the world's control block, then for each channel (numbered by the order of
// Communicator::split, the same on all ranks) and each world rank an area of fixed size, so that every rank finds
// every area without asking.
//
// Thread safety: all members, from any thread and any process that has attached.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace orthant {

enum class RankState : std::uint32_t { starting, running, finished, failed };

struct SegmentOptions {
  // How many splits the world may make; 0: as many as fit 512 GiB of address space (less under ulimit -f and -v), at
  // most 4096. All sizes here are of address space: memory is used for what is touched.
  int channels = 0;
  std::size_t stage_bytes = 256 * 1024;    // a rank's chunk of a collective; two are in flight
  std::size_t mailbox_bytes = 128 * 1024;  // a chunk of send; two are in flight per pair
  // all_gather and all_to_all of more bytes than this read the memory of the other processes, where the system allows
  // it; up to here a copy costs less than the system call that saves it.
  std::size_t direct_bytes = 256 * 1024;
};

// The first failure of a world.
struct WorldFailure {
  int rank = -1;  // at fault
  std::string why;
};

class LocalSegment {
 public:
  // REQUIRES: 1 <= world_size <= max_world. Errors: Error with the system's reason.
  static std::shared_ptr<LocalSegment> create(int world_size, SegmentOptions options = {});
  // Maps the segment behind `fd`, which stays the caller's. Errors: Error if it is not a segment of this version.
  static std::shared_ptr<LocalSegment> attach(int fd);
  ~LocalSegment();
  LocalSegment(const LocalSegment&) = delete;
  LocalSegment& operator=(const LocalSegment&) = delete;

  static constexpr int max_world = 64;

  // For attach() in another process: inherited by fork; closed by exec unless FD_CLOEXEC is cleared in the child.
  int fd() const { return fd_; }
  int world_size() const { return world_size_; }
  const SegmentOptions& options() const { return options_; }  // with the number of channels that it found

  RankState state(int rank) const;
  // Of the caller's own rank: running, finished.
  void set_state(int rank, RankState state);

  // The world stops: every rank that waits, or comes to wait, fails with `why` within a second. Called by a
  // launcher on a child's death, and by a rank that gives up. The first call wins; text beyond 1000 bytes is cut.
  void mark_failed(int rank, const std::string& why) noexcept;
  bool failed() const { return failure_flag().load(std::memory_order_acquire) != 0; }
  std::optional<WorldFailure> failure() const;

  // Signs of life of `rank`: it begins a call; it waits for the ranks of a set (bit r: world rank r; waiters say so
  // again and again); it is busy with files.
  void beat(int rank) noexcept;
  void say_waiting(int rank, std::uint64_t for_ranks) noexcept;
  void say_busy(int rank) noexcept;
  // The newest of them.
  struct Signs {
    double seconds_since_any = 0;
    double seconds_since_waiting = 0;  // infinite: it never was
    double seconds_since_busy = 0;     // infinite: it never was
    std::uint64_t waits_for = 0;
    std::int32_t process = 0;
  };
  Signs signs(int rank) const;

  // The optimizer step that `rank` is in, counted from 0; -1 before the first.
  void set_step(int rank, std::int64_t step) noexcept;
  std::int64_t step(int rank) const;

  // The area of `world_rank` in `channel`, zero when first touched. Errors: Error for a channel beyond
  // options().channels.
  std::byte* area(int channel, int world_rank) const;
  // Memory in use by all channels, in bytes.
  std::size_t resident_bytes() const;
  std::size_t area_bytes() const { return area_bytes_; }

 private:
  struct Control;
  LocalSegment(int fd, std::byte* base, std::size_t bytes);
  Control& control() const { return *reinterpret_cast<Control*>(base_); }
  const std::atomic<std::uint32_t>& failure_flag() const;

  int fd_;
  std::byte* base_;
  std::size_t bytes_;
  int world_size_ = 0;
  SegmentOptions options_;
  std::size_t area_bytes_ = 0;
};

}  // namespace orthant
