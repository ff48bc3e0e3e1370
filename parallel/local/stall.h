// Whom to name when a wait has lasted too long.
//
// The rank that somebody waits for may itself wait for another: in a chain of groups one stopped rank holds up many,
// and the first to lose its patience need not share a group with it. So the search follows what each rank says that it
// waits for, to the ranks that wait for nobody.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/local/segment.h"

namespace orthant {

struct Stall {
  int rank = -1;                   // at fault
  std::string account;             // what is known of it, as a clause of a sentence
  bool reader_is_stopped = false;  // its launcher is, so it may wait for room to print; on SIGCONT all go on
  double seconds_since_busy = 0;   // since any rank that holds up the wait was busy with files; infinite: none was
};

// missing: the ranks that are waited for (bit r: world rank r), at least one. A rank that has not said that it waits
// for `quiet_seconds` is taken for one that does not wait.
Stall find_stall(const LocalSegment& segment, std::uint64_t missing, double quiet_seconds);

// "rank 3", "ranks 0, 3" or "ranks 0 to 6, 9, 11": of a set of world ranks (bit r: rank r).
std::string names_of(std::uint64_t ranks);

}  // namespace orthant
