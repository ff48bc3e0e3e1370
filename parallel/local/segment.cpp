#include "parallel/local/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

#include <orthant/error.h>

#include "parallel/local/area.h"

namespace orthant {
namespace {

constexpr std::uint64_t segment_magic = 0x3174'6e61'6874'726f;  // "orthant1"
constexpr std::size_t why_bytes = 1000;
constexpr std::size_t automatic_bytes = std::size_t{512} << 30, automatic_channels = 4096;

enum FailureFlag : std::uint32_t { no_failure, being_written, written };

std::int64_t coarse_ms() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
}

// Address space that a segment of automatic size may take: limits of the process make it smaller.
std::size_t allowed_bytes() {
  constexpr std::size_t header = 1 << 20;  // and what else is there
  std::size_t bytes = automatic_bytes;
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min<std::size_t>(bytes, limit.rlim_cur - std::min<std::size_t>(limit.rlim_cur, header));
  }
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min<std::size_t>(bytes, limit.rlim_cur / 4);  // the rest is for the model
  }
  return bytes;
}

std::byte* map(int fd, std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    fail("cannot map the {} MiB of address space of the ranks' shared memory: {} (is 'ulimit -v' set?)", bytes >> 20,
         std::strerror(errno));
  }
  // A crash must not write gigabytes of staging to a core file.
  madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

}  // namespace

struct LocalSegment::Control {
  std::uint64_t magic;
  std::uint32_t header_bytes;  // sizeof(Control): another build of this library has another layout
  std::int32_t world_size;
  SegmentOptions options;
  struct alignas(64) Rank {
    std::atomic<RankState> state;
    std::atomic<std::int32_t> process;  // where it runs; 0 until then
    std::atomic<std::int64_t> beat_ms;
    std::atomic<std::int64_t> waiting_ms, busy_ms;  // 0: never
    std::atomic<std::uint64_t> waits_for;
    std::atomic<std::int64_t> step;
  } rank[max_world];
  alignas(64) std::atomic<std::uint32_t> failure_flag;
  std::int32_t failure_rank;
  char failure_why[why_bytes + 1];
};

LocalSegment::LocalSegment(int fd, std::byte* base, std::size_t bytes) : fd_(fd), base_(base), bytes_(bytes) {}

LocalSegment::~LocalSegment() {
  munmap(base_, bytes_);
  close(fd_);
}

std::shared_ptr<LocalSegment> LocalSegment::create(int world_size, SegmentOptions options) {
  require(world_size >= 1 && world_size <= max_world,
          "the local communicator serves 1 to {} ranks on one machine, not {}: use the mpi communicator", max_world,
          world_size);
  require(options.channels >= 0 && options.stage_bytes >= 4096 && options.mailbox_bytes >= 4096,
          "a local segment needs 0 (automatic) or more channels and at least 4096 bytes of staging, got {} channels, "
          "{} and {} bytes",
          options.channels, options.stage_bytes, options.mailbox_bytes);
  const AreaLayout layout(options, world_size);
  const std::size_t channel_bytes = layout.total * static_cast<std::size_t>(world_size);
  if (options.channels == 0) {
    options.channels =
        static_cast<int>(std::clamp<std::size_t>(allowed_bytes() / channel_bytes, 1, automatic_channels));
  }
  const std::size_t bytes =
      AreaLayout::round_up(sizeof(Control)) + channel_bytes * static_cast<std::size_t>(options.channels);
  const int fd = memfd_create("orthant-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    fail("cannot make shared memory for {} ranks (memfd_create): {}", world_size, std::strerror(errno));
  }
  std::byte* base = nullptr;
  try {
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      fail("cannot size shared memory to {} MiB: {}{}", bytes >> 20, std::strerror(errno),
           errno == EFBIG ? " (is 'ulimit -f' set?)" : "");
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    base = map(fd, bytes);
  } catch (...) {
    close(fd);
    throw;
  }
  std::shared_ptr<LocalSegment> segment(new LocalSegment(fd, base, bytes));
  Control& control = *new (base) Control{};
  control.header_bytes = sizeof(Control);
  control.world_size = world_size;
  control.options = options;
  for (Control::Rank& rank : control.rank) {
    rank.beat_ms.store(coarse_ms(), std::memory_order_relaxed);
    rank.step.store(-1, std::memory_order_relaxed);
  }
  control.magic = segment_magic;
  segment->world_size_ = world_size;
  segment->options_ = options;
  segment->area_bytes_ = layout.total;
  return segment;
}

std::shared_ptr<LocalSegment> LocalSegment::attach(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    fail("file descriptor {} is not the ranks' shared memory: {}", fd, std::strerror(errno));
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  require(bytes >= sizeof(Control), "file descriptor {} is not the ranks' shared memory: it has {} bytes", fd, bytes);
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) {
    fail("cannot duplicate file descriptor {}: {}", fd, std::strerror(errno));
  }
  std::byte* base = nullptr;
  try {
    base = map(own, bytes);
  } catch (...) {
    close(own);
    throw;
  }
  std::shared_ptr<LocalSegment> segment(new LocalSegment(own, base, bytes));
  const Control& control = segment->control();
  require(control.magic == segment_magic && control.header_bytes == sizeof(Control) && control.world_size >= 1 &&
              control.world_size <= max_world,
          "file descriptor {} is not shared memory of this version of the library: launcher and ranks must be the "
          "same build",
          fd);
  const AreaLayout layout(control.options, control.world_size);
  require(bytes == AreaLayout::round_up(sizeof(Control)) + layout.total * static_cast<std::size_t>(control.world_size) *
                                                               static_cast<std::size_t>(control.options.channels),
          "the ranks' shared memory has an unexpected size of {} bytes", bytes);
  segment->world_size_ = control.world_size;
  segment->options_ = control.options;
  segment->area_bytes_ = layout.total;
  return segment;
}

RankState LocalSegment::state(int rank) const {
  return control().rank[rank].state.load(std::memory_order_acquire);
}

void LocalSegment::set_state(int rank, RankState state) {
  control().rank[rank].process.store(getpid(), std::memory_order_relaxed);
  control().rank[rank].state.store(state, std::memory_order_release);
  beat(rank);
}

void LocalSegment::mark_failed(int rank, const std::string& why) noexcept {
  Control& c = control();
  if (rank >= 0 && rank < world_size_) {
    c.rank[rank].state.store(RankState::failed, std::memory_order_release);
  }
  std::uint32_t expected = no_failure;
  if (!c.failure_flag.compare_exchange_strong(expected, being_written, std::memory_order_acq_rel)) {
    return;
  }
  c.failure_rank = rank;
  const std::size_t n = std::min(why.size(), why_bytes);
  std::memcpy(c.failure_why, why.data(), n);
  c.failure_why[n] = '\0';
  c.failure_flag.store(written, std::memory_order_release);
}

const std::atomic<std::uint32_t>& LocalSegment::failure_flag() const {
  return control().failure_flag;
}

std::optional<WorldFailure> LocalSegment::failure() const {
  const Control& c = control();
  // The writer may be killed between its two stores: do not wait for it longer than 100 ms.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint32_t flag = c.failure_flag.load(std::memory_order_acquire);
    if (flag == no_failure) {
      return std::nullopt;
    }
    if (flag == written) {
      return WorldFailure{c.failure_rank, c.failure_why};
    }
    usleep(1000);
  }
  return WorldFailure{-1, "a rank failed and was killed before it could say why"};
}

void LocalSegment::beat(int rank) noexcept {
  control().rank[rank].beat_ms.store(coarse_ms(), std::memory_order_relaxed);
}

void LocalSegment::say_waiting(int rank, std::uint64_t for_ranks) noexcept {
  Control::Rank& own = control().rank[rank];
  own.waits_for.store(for_ranks, std::memory_order_relaxed);
  own.waiting_ms.store(coarse_ms(), std::memory_order_release);
}

void LocalSegment::say_busy(int rank) noexcept {
  control().rank[rank].busy_ms.store(coarse_ms(), std::memory_order_relaxed);
}

LocalSegment::Signs LocalSegment::signs(int rank) const {
  const Control::Rank& r = control().rank[rank];
  const std::int64_t waiting = r.waiting_ms.load(std::memory_order_acquire), busy = r.busy_ms.load();
  const std::int64_t newest = std::max({r.beat_ms.load(), waiting, busy}), now = coarse_ms();
  const auto since = [now](std::int64_t then) {
    return then == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(now - then) * 1e-3;
  };
  return {since(newest), since(waiting), since(busy), r.waits_for.load(std::memory_order_relaxed),
          r.process.load(std::memory_order_relaxed)};
}

void LocalSegment::set_step(int rank, std::int64_t step) noexcept {
  control().rank[rank].step.store(step, std::memory_order_relaxed);
}

std::int64_t LocalSegment::step(int rank) const {
  return control().rank[rank].step.load(std::memory_order_relaxed);
}

std::size_t LocalSegment::resident_bytes() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) {
    fail("cannot ask for the size of the ranks' shared memory: {}", std::strerror(errno));
  }
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

std::byte* LocalSegment::area(int channel, int world_rank) const {
  require(channel >= 0 && channel < options_.channels, "channel {} is not one of the world's {}", channel,
          options_.channels);
  return base_ + AreaLayout::round_up(sizeof(Control)) +
         area_bytes_ * (static_cast<std::size_t>(channel) * static_cast<std::size_t>(world_size_) +
                        static_cast<std::size_t>(world_rank));
}

}  // namespace orthant
