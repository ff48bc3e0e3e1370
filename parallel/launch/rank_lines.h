// RankLines: what the ranks print, as prefixed lines on the console.
//
// Once the run has failed, what several ranks say of it is shown once, with all their names: 64 ranks that give up for
// one reason are one message. Each rank's own log has its own words.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/launch/console.h"
#include "parallel/launch/rank_segment.h"

namespace orthant {

class RankLines {
 public:
  // failure: asked at every line of an error stream; the failure that the ranks were told of, once there is one.
  explicit RankLines(Console& console, std::function<std::optional<RankFailure>()> failure = {});

  void output(int rank, std::string_view text);
  void error(int rank, std::string_view text);
  Console& console() { return console_; }

  // From now on lines of the error streams are held back, to be shown together.
  void hold() { holds_ = true; }
  // Shows what was held back so far.
  void show_held();

 private:
  struct Held {
    std::string text;
    std::vector<int> ranks;   // that said just this
    std::vector<int> others;  // that said the reason in other words
    bool repeats;             // the reason, which the rank at fault says for itself
  };

  Console& console_;
  std::function<std::optional<RankFailure>()> failure_;
  bool holds_ = false;
  bool reason_shown_ = false;
  std::vector<Held> held_;
};

// "[r3] ", "[r0-r2 r5] ".
std::string rank_prefix(std::vector<int> ranks);

}  // namespace orthant
