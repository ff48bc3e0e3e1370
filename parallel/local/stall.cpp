#include "parallel/local/stall.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "parallel/process_state.h"

namespace orthant {
namespace {

constexpr std::uint64_t bit(int rank) {
  return std::uint64_t{1} << rank;
}

template <class Body>
void for_each(std::uint64_t ranks, Body body) {
  for (; ranks != 0; ranks &= ranks - 1) {
    body(std::countr_zero(ranks));
  }
}

// 0 where ranks are threads.
char state_of(std::int32_t process) {
  return process <= 0 || process == getpid() ? char{0} : process_state(process);
}

std::string account_of(int rank, const LocalSegment::Signs& signs, char state) {
  if (signs.process == 0) {
    return fmt::format("rank {} has not come: it was not started, or hangs at its start", rank);
  }
  const std::string heard = fmt::format("rank {} was last heard of {:.1f} s ago", rank, signs.seconds_since_any);
  switch (state) {
    case 'T': return heard + "; it is stopped (SIGSTOP, SIGTSTP or Ctrl-Z)";
    case 't': return heard + "; it is stopped by a debugger";
    case 'D': return heard + "; it waits for a disk or the network in the kernel";
    default: return heard + "; it is stuck, stopped or busy elsewhere";
  }
}

}  // namespace

Stall find_stall(const LocalSegment& segment, std::uint64_t missing, double quiet_seconds) {
  std::vector<LocalSegment::Signs> signs;
  for (int rank = 0; rank < segment.world_size(); ++rank) {
    signs.push_back(segment.signs(rank));
  }
  const auto of = [&signs](int rank) -> const LocalSegment::Signs& { return signs[rank]; };
  std::uint64_t reached = missing, waiting = 0, followed = 0;
  while (followed != reached) {
    for_each(reached & ~followed, [&](int rank) {
      followed |= bit(rank);
      if (of(rank).seconds_since_waiting < quiet_seconds) {
        waiting |= bit(rank);
        reached |= of(rank).waits_for;
      }
    });
  }
  Stall stall;
  stall.seconds_since_busy = std::numeric_limits<double>::infinity();
  for_each(reached, [&](int rank) {
    stall.seconds_since_busy = std::min(stall.seconds_since_busy, of(rank).seconds_since_busy);
  });
  // A stopped process is at fault whatever else is; then whoever waits for nobody and has been silent for longest.
  const std::uint64_t suspects = (reached & ~waiting) != 0 ? reached & ~waiting : missing;
  char state = 0;
  for_each(reached, [&](int rank) {
    const char found = state_of(of(rank).process);
    const bool suspected = (suspects & bit(rank)) != 0;
    if (!is_stopped(found) && (!suspected || is_stopped(state))) {
      return;
    }
    if (stall.rank < 0 || (is_stopped(found) && !is_stopped(state)) ||
        of(rank).seconds_since_any > of(stall.rank).seconds_since_any) {
      stall.rank = rank;
      state = found;
    }
  });
  const std::int32_t process = of(stall.rank).process;
  stall.reader_is_stopped =
      !is_stopped(state) && process > 0 && process != getpid() && is_stopped(process_state(parent_process(process)));
  stall.account = account_of(stall.rank, of(stall.rank), state);
  if ((missing & bit(stall.rank)) == 0) {
    stall.account = fmt::format("held up by rank {}, for which others wait in turn: {}", stall.rank, stall.account);
  }
  return stall;
}

std::string names_of(std::uint64_t ranks) {
  std::vector<std::string> runs;
  for (int first = 0; first < 64;) {
    if ((ranks & bit(first)) == 0) {
      ++first;
      continue;
    }
    int last = first;
    while (last < 63 && (ranks & bit(last + 1)) != 0) {
      ++last;
    }
    for (; last < first + 2 && first <= last; ++first) {
      runs.push_back(std::to_string(first));  // one or two by themselves
    }
    if (first <= last) {
      runs.push_back(fmt::format("{} to {}", first, last));
    }
    first = last + 1;
  }
  return fmt::format("rank{} {}", std::popcount(ranks) > 1 ? "s" : "", fmt::join(runs, ", "));
}

}  // namespace orthant
