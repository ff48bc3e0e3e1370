// Whether and when ranks that failed start again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace orthant {

// How one start of the ranks failed.
struct FailedRound {
  // Equal where the next start may be expected to fail likewise: the kind of ending and the reason, without what
  // differs among ranks. Empty: a cause from outside, which says nothing of the next start.
  std::string way;
  std::int64_t step = -1;        // the furthest that a rank was in, counted from 0; -1: none, or not known
  std::int64_t checkpoint = -1;  // step of the newest one; -1: none
};

// failed.way, from a reason in a user's words: numbers (ranks, steps, times) are left out.
std::string way_of(const std::string& kind, const std::string& reason);

struct RestartLimits {
  int restarts = 0;  // without progress between
  double first_wait_seconds = 1;
  double longest_wait_seconds = 60;
};

// A round that came further than all before it, in steps or in checkpoints, gives the whole allowance back. Without
// such progress each wait is twice the one before. The same step that fails the same way twice is not tried again.
class RestartPolicy {
 public:
  // checkpoint: step of the newest one before the first start.
  RestartPolicy(RestartLimits limits, std::int64_t checkpoint) : limits_(limits), checkpoint_(checkpoint) {}

  struct Decision {
    int number = 0;  // of this restart since the last progress; 0: do not restart
    double wait_seconds = 0;
    std::string why_not;  // where there is more to say than that the restarts are used up
  };
  Decision after(const FailedRound& failed);

 private:
  RestartLimits limits_;
  std::int64_t checkpoint_;
  std::int64_t step_ = -1;
  int used_ = 0;
  std::optional<FailedRound> last_;
};

}  // namespace orthant
