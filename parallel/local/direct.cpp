// Collectives of large data in which each member reads the others' memory itself: one copy, and two or three waits
// whatever the size.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "parallel/local/channel.h"
#include "parallel/local/peer_memory.h"

namespace orthant {
namespace {

constexpr std::int64_t piece_bytes = 32 * 1024;  // of each member in a reduction: all of them stay in a cache

}  // namespace

bool LocalChannel::reads_directly() {
  if (reads_directly_) {
    return *reads_directly_;
  }
  MemoryWindow& own = areas_[rank_].control->window;
  let_siblings_read();
  // A process of that number in another namespace holds something else there.
  own.token = probe_ =
      group_hash_ ^ (static_cast<std::uint64_t>(getpid()) << 32) ^ reinterpret_cast<std::uint64_t>(this);
  own.probe = reinterpret_cast<std::uint64_t>(&probe_);
  arrive();
  wait_for_all();
  bool all = true;
  for (int member = 0; member < size() && all; ++member) {
    const MemoryWindow& other = areas_[member].control->window;
    const std::int32_t process = segment_->signs(members_[member]).process;
    std::uint64_t found = 0;
    // Threads of one process share slots instead: one that fails would free what another still reads.
    all = member == rank_ ||
          (process != getpid() && read_memory(process, &found, other.probe, sizeof found) == 0 && found == other.token);
  }
  own.reads_all = all ? 1 : 0;
  arrive();
  wait_for_all();
  for (int member = 0; member < size(); ++member) {
    all = all && areas_[member].control->window.reads_all == 1;
  }
  reads_directly_ = all;
  return all;
}

void LocalChannel::offer(const void* data) {
  areas_[rank_].control->window.data[call_.sequence % 2] = reinterpret_cast<std::uint64_t>(data);
}

void LocalChannel::read_from(int member, void* to, std::uint64_t offset, std::uint64_t n) {
  const std::uint64_t from = areas_[member].control->window.data[call_.sequence % 2] + offset;
  if (const int error = read_memory(segment_->signs(members_[member]).process, to, from, n); error != 0) {
    lost_member(member, error);
  }
  count_moved(call_.kind, n);
}

void LocalChannel::settle() {
  arrive();
  wait_for_all();
}

// The launcher sees how a process ended and says so; this rank only knows that it is gone.
void LocalChannel::lost_member(int member, int error) {
  for (int i = 0; i < 200 && !segment_->failed(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (segment_->failed()) {
    give_up(call_);
  }
  fail_world(members_[member], fmt::format("rank {}'s memory could not be read in {}: {}", members_[member],
                                           describe(call_), std::strerror(error)));
}

void LocalChannel::all_gather_directly(std::byte* out, const std::byte* in, std::uint64_t bytes) {
  offer(in);
  arrive();
  wait_for_all();
  if (std::byte* const own = out + static_cast<std::uint64_t>(rank_) * bytes; own != in) {
    std::memcpy(own, in, bytes);
  }
  for (int next = 1; next < size(); ++next) {
    const int member = (rank_ + next) % size();
    read_from(member, out + static_cast<std::uint64_t>(member) * bytes, 0, bytes);
  }
  settle();
}

void LocalChannel::reduce_offered(std::byte* out, const std::byte* own, std::uint64_t offset, std::int64_t n,
                                  DType dtype, ReduceOp op) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t piece = piece_bytes / element;
  pieces_.resize(static_cast<std::size_t>(size()) * piece_bytes);
  for (std::int64_t at = 0; at < n; at += piece) {
    const std::int64_t count = std::min(piece, n - at);
    std::array<const void*, LocalSegment::max_world> sources{};
    for (int member = 0; member < size(); ++member) {
      std::byte* const copy = pieces_.data() + member * piece_bytes;
      sources[static_cast<std::size_t>(member)] = member == rank_ ? own + at * element : copy;
      if (member != rank_) {
        read_from(member, copy, offset + static_cast<std::uint64_t>(at * element),
                  static_cast<std::uint64_t>(count * element));
      }
    }
    reduce_in_rank_order(out + at * element, {sources.data(), members_.size()}, count, dtype, op);
  }
}

void LocalChannel::reduce_scatter_directly(std::byte* out, const std::byte* in, std::int64_t n, DType dtype,
                                           ReduceOp op) {
  const auto block = static_cast<std::uint64_t>(n) * size_of(dtype), offset = static_cast<std::uint64_t>(rank_) * block;
  offer(in);
  arrive();
  wait_for_all();
  reduce_offered(out, in + offset, offset, n, dtype, op);
  settle();
}

// Member j reduces range j of all data; then all collect the ranges. In the first round only member j reads range j of
// anybody's data, so that the result may stand in its own.
void LocalChannel::all_reduce_directly(std::byte* data, std::int64_t n, DType dtype, ReduceOp op) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t line = 64 / element, part = (n + size() - 1) / size();
  const std::int64_t step = (part + line - 1) / line * line;
  const auto begin_of = [&](int member) { return std::min(n, member * step); };
  offer(data);
  arrive();
  wait_for_all();
  const std::int64_t begin = begin_of(rank_);
  std::byte* const own = data + begin * element;
  reduce_offered(own, own, static_cast<std::uint64_t>(begin * element), begin_of(rank_ + 1) - begin, dtype, op);
  arrive();
  wait_for_all();
  for (int next = 1; next < size(); ++next) {
    const int member = (rank_ + next) % size();
    const std::int64_t at = begin_of(member), count = begin_of(member + 1) - at;
    read_from(member, data + at * element, static_cast<std::uint64_t>(at * element),
              static_cast<std::uint64_t>(count * element));
  }
  settle();
}

}  // namespace orthant
