// Collectives of large data in which each member reads the others' memory itself: one copy, and two waits whatever the
// size. Sums stay in the slots: read in pieces that fit a cache, the system calls cost more than the copy that they
// save.
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "parallel/local/channel.h"
#include "parallel/local/peer_memory.h"

namespace orthant {

bool LocalChannel::reads_directly() {
  if (reads_directly_) {
    return *reads_directly_;
  }
  MemoryWindow& own = areas_[rank_].control->window;
  let_siblings_read();
  // A process of that number in another namespace holds something else there: also where it is a rank of the same
  // program, whose addresses the system has not shuffled.
  own.token = probe_ = group_hash_ ^ (static_cast<std::uint64_t>(getpid()) << 32) ^
                       reinterpret_cast<std::uint64_t>(this) ^ static_cast<std::uint64_t>(now_ns());
  own.probe = reinterpret_cast<std::uint64_t>(&probe_);
  own.process = getpid();
  arrive();
  wait_for_all();
  bool all = true;
  for (int member = 0; member < size() && all; ++member) {
    const MemoryWindow& other = areas_[member].control->window;
    std::uint64_t found = 0;
    // Threads of one process share slots instead: one that fails would free what another still reads.
    all =
        member == rank_ || (other.process != own.process &&
                            read_memory(other.process, &found, other.probe, sizeof found) == 0 && found == other.token);
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

bool LocalChannel::read_from(int member, void* to, std::uint64_t offset, std::uint64_t n) {
  const MemoryWindow& window = areas_[member].control->window;
  const int error = read_memory(window.process, to, window.data[call_.sequence % 2] + offset, n);
  if (error == ESRCH) {
    lost_member(member, error);
  }
  if (error == 0) {
    count_moved(call_.kind, n);
  }
  return error == 0;
}

// What the system allowed at first it may refuse later: what Yama allows to a parent's descendants ends with the
// parent, a library may make this process unreadable, and memory of a device cannot be read at all.
bool LocalChannel::settle(bool read) {
  const std::size_t parity = call_.sequence % 2;
  areas_[rank_].control->window.missed[parity] = read ? 0 : 1;
  arrive();
  wait_for_all();
  for (const Member& member : areas_) {
    if (member.control->window.missed[parity] != 0) {
      reads_directly_ = false;
    }
  }
  return *reads_directly_;
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

bool LocalChannel::all_gather_directly(std::byte* out, const std::byte* in, std::uint64_t bytes) {
  offer(in);
  arrive();
  wait_for_all();
  if (std::byte* const own = out + static_cast<std::uint64_t>(rank_) * bytes; own != in) {
    std::memcpy(own, in, bytes);
  }
  bool read = true;
  for (int next = 1; next < size() && read; ++next) {
    const int member = (rank_ + next) % size();
    read = read_from(member, out + static_cast<std::uint64_t>(member) * bytes, 0, bytes);
  }
  return settle(read);
}

}  // namespace orthant
