#include "parallel/launch/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace orthant {

std::string way_of(const std::string& kind, const std::string& reason) {
  std::string way = kind + ": ";
  bool in_number = false;
  for (const char c : reason) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit || !in_number) {
      way += digit ? '#' : c;
    }
    in_number = digit;
  }
  return way;
}

RestartPolicy::Decision RestartPolicy::after(const FailedRound& failed) {
  if (limits_.restarts == 0) {
    return {};
  }
  const bool same = last_ && !failed.way.empty() && failed.way == last_->way && failed.step >= 0 &&
                    failed.step == last_->step && failed.checkpoint == last_->checkpoint;
  last_ = failed;
  if (same) {
    return {.why_not =
                fmt::format("step {} failed twice in the same way: another start would not help", failed.step + 1)};
  }
  if (failed.checkpoint > checkpoint_ || failed.step > step_) {
    used_ = 0;
  }
  checkpoint_ = std::max(checkpoint_, failed.checkpoint);
  step_ = std::max(step_, failed.step);
  if (used_ == limits_.restarts) {
    return {};
  }
  const double wait =
      std::min(limits_.longest_wait_seconds, std::ldexp(limits_.first_wait_seconds, std::min(used_, 30)));
  return {.number = ++used_, .wait_seconds = wait, .why_not = {}};
}

}  // namespace orthant
