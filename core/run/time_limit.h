// TimeLimit: when a run has to save and end, to do so within a given time (run.time_limit).
//
// Thread safety: one thread, of rank 0.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace orthant {

// Since this process was started.
double seconds_of_process();

class TimeLimit {
 public:
  // seconds: 0 for none. now: seconds since the time began to count.
  explicit TimeLimit(double seconds, std::function<double()> now = seconds_of_process);

  // Right before the first step; and after each step of so many sequences, with what is done between it and the next,
  // saves apart.
  void begin() { last_ = now_(); }
  void after_step(std::int64_t sequences);
  // Around a save.
  void before_save() { save_ = now_(); }
  void after_save();
  // Instead of after_save where the save goes on beside the steps; and once that has ended, with all that it took.
  void save_goes_on();
  void save_took(std::optional<double> seconds);  // nothing: none has ended

  // Whether `steps` steps more and a save would not fit, as long as the longest of each so far; steps of more
  // sequences than any so far take longer in proportion. save_due: one more save comes before these steps. A save that
  // goes on is to end first.
  bool is_up(std::int64_t steps, std::int64_t sequences, bool save_due = false) const;
  // Why it is up, a line for the user.
  std::string text(std::int64_t sequences) const;

 private:
  double seconds_of_saves() const;
  double seconds_of_step(std::int64_t sequences) const;

  const double limit_;
  const std::function<double()> now_;
  double last_ = 0, save_ = 0;
  double longest_step_ = 0, longest_save_ = 0;
  std::int64_t most_sequences_ = 0;  // of a step so far
  std::optional<double> goes_on_;    // since when
};

}  // namespace orthant
