#include "core/run/time_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

// Before main().
const Clock::time_point process_began = Clock::now();

}  // namespace

double seconds_of_process() {
  return std::chrono::duration<double>(Clock::now() - process_began).count();
}

TimeLimit::TimeLimit(double seconds, std::function<double()> now) : limit_(seconds), now_(std::move(now)) {}

void TimeLimit::after_step(std::int64_t sequences) {
  const double now = now_();
  most_sequences_ = std::max(most_sequences_, sequences);
  longest_step_ = std::max(longest_step_, now - last_);
  last_ = now;
}

void TimeLimit::after_save() {
  const double took = now_() - save_;
  longest_save_ = std::max(longest_save_, took);
  last_ += took;
}

void TimeLimit::save_goes_on() {
  const double now = now_();
  last_ += now - save_;
  goes_on_ = now;
}

void TimeLimit::save_took(std::optional<double> seconds) {
  if (seconds.has_value()) {
    longest_save_ = std::max(longest_save_, *seconds);
    goes_on_.reset();
  }
}

// The one that goes on has taken a time already, which others may take too.
double TimeLimit::seconds_of_saves() const {
  if (!goes_on_.has_value()) {
    return longest_save_;
  }
  const double taken = now_() - *goes_on_, longest = std::max(longest_save_, taken);
  return (longest - taken) + longest;
}

double TimeLimit::seconds_of_step(std::int64_t sequences) const {
  const bool larger = most_sequences_ > 0 && sequences > most_sequences_;
  return longest_step_ * (larger ? static_cast<double>(sequences) / static_cast<double>(most_sequences_) : 1);
}

bool TimeLimit::is_up(std::int64_t steps, std::int64_t sequences, bool save_due) const {
  const double saves = seconds_of_saves() + (save_due ? longest_save_ : 0);
  return limit_ > 0 && now_() + static_cast<double>(steps) * seconds_of_step(sequences) + saves > limit_;
}

std::string TimeLimit::text(std::int64_t sequences) const {
  return fmt::format(
      "run.time_limit = {:g} s: {:.1f} s have passed, and another step ({:.1f} s) and a save ({:.1f} s) may not fit\n",
      limit_, now_(), seconds_of_step(sequences), seconds_of_saves());
}

}  // namespace orthant
