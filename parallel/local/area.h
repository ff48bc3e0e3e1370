// AreaLayout: what lies where in a rank's area of one channel (see segment.h), and the structs that ranks share.
//
// The rule of all staging: what a rank writes in round r goes to slot r % 2; others read it after they have seen
// that rank arrive at r and before they arrive at r + 1 themselves. A rank writes in round r + 2 only after all
// have arrived at r + 1. So two slots suffice and one wait a round is enough.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel/collective.h"
#include "parallel/local/segment.h"
#include "parallel/local/wait.h"

namespace orthant {

inline constexpr std::size_t collective_kinds = static_cast<std::size_t>(Collective::recv) + 1;

// What a member says about its call before any data: compared by the others.
struct CallHeader {
  Collective kind = Collective::none;
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::int32_t root = -1;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;   // of the caller's data; differs among members only in all_to_all
  std::uint64_t group = 0;   // hash of the group's name and members
  std::uint64_t rounds = 0;  // all_to_all: how many this member's data needs
};

// One direction of a pair, in the sender's area.
struct Mailbox {
  SharedWord sent;      // chunks; written by the sender
  SharedWord received;  // chunks; written by the receiver
  CallHeader header[2];
};

// What one member has done since the channel was made: written by it alone, read by anyone. See traffic.h.
struct TrafficCounter {
  std::atomic<std::uint64_t> calls, ideal_bytes, moved_bytes;
};

// What a member says so that others read its memory by themselves (peer_memory.h): addresses in its process.
struct MemoryWindow {
  std::uint64_t data[2];       // the data of its call, by parity of the sequence number
  std::uint64_t probe, token;  // a word that others try to read, and what it holds
  std::int32_t process;
  std::uint32_t reads_all;  // 1: it could read the probes of all members
  std::uint32_t missed[2];  // by parity of the sequence number: 1: it could not read all of the call's data
};

struct AreaControl {
  SharedWord arrived;    // rounds this rank has arrived at
  SharedWord everyone;   // of group rank 0: bumped when the last member arrives at a round somebody sleeps for
  CallHeader header[2];  // by parity of the sequence number
  alignas(64) std::uint64_t prefix[2][LocalSegment::max_world + 1];  // all_to_all: first byte for each member
  TrafficCounter traffic[collective_kinds];
  MemoryWindow window;
};

struct AreaLayout {
  explicit AreaLayout(const SegmentOptions& options, int world_size)
      : stage_bytes(round_up(options.stage_bytes)), mailbox_bytes(round_up(options.mailbox_bytes)) {
    mailboxes = round_up(sizeof(AreaControl));
    stages = mailboxes + round_up(sizeof(Mailbox) * static_cast<std::size_t>(world_size));
    results = stages + 2 * stage_bytes;
    mailbox_data = results + 2 * stage_bytes;
    total = mailbox_data + 2 * mailbox_bytes * static_cast<std::size_t>(world_size);
  }
  static constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  std::size_t stage_bytes, mailbox_bytes;
  std::size_t mailboxes, stages, results, mailbox_data, total;
};

}  // namespace orthant
