// Traffic: what the collectives of the local communicator move, counted where they move it.
//
// Two numbers, because they need not be the same. *Ideal*: the bytes that leave a rank by ring or direct algorithms,
// the formulas of `orthant plan`. *Moved*: the bytes that the rank copied or summed out of other ranks' memory, which
// is what a wire between them would have carried to it. Summed over the members of a group the two are equal but for
//   all_reduce of up to 16 KB: every member reads all contributions, p - 1 times the tensor instead of 2 (p - 1) / p;
//   barriers, counts and comparisons of calls, which are neither.
// What a rank copies into its own area for others to read is in neither number.
#pragma once

#include <array>
#include <cstdint>

#include "parallel/local/area.h"
#include "parallel/local/segment.h"

namespace orthant {

struct Traffic {
  std::uint64_t calls = 0, ideal_bytes = 0, moved_bytes = 0;
};

// Of world rank `rank` since channel number `channel` (that of the split) was made, by kind; what recv moves is counted
// as moved by send. Any process may ask at any time; a call in progress is in it in part.
std::array<Traffic, collective_kinds> traffic_of(const LocalSegment& segment, int channel, int rank);

// The bytes that leave member `rank` of `members` in one call; `bytes` as in CallHeader. all_to_all: 0, not known from
// these.
std::uint64_t ideal_bytes(const CallHeader& call, int rank, int members);

}  // namespace orthant
