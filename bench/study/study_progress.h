// StudyProgress: what a study tells on the terminal while its points train, and when it expects to end.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bench/study/point_queue.h"

namespace orthant {

class StudyProgress {
 public:
  // All outlive it. terminal: a line overwrites itself.
  StudyProgress(const StudyFolder& folder, const StudyFile& study, const std::vector<GridPoint>& points, bool terminal)
      : folder_(folder), study_(study), points_(points), terminal_(terminal) {}

  // These points are trained now, so many at a time.
  void begin(const std::vector<const GridPoint*>& all, int places);
  // A point has ended. seconds: that it took; nothing: it had begun before.
  void ended(const GridPoint& point, const std::string& outcome, std::optional<double> seconds);
  // These are under way. A terminal is told, now and then.
  void running(const std::vector<PointQueue::Running>& running);

  // A line that the next one overwrites. REQUIRES: a terminal.
  void overwritten(const std::string& text);
  // Ends such a line, so that other text can follow.
  void clear_line();

 private:
  using Clock = std::chrono::steady_clock;
  double seconds_left(double done) const;

  const StudyFolder& folder_;
  const StudyFile& study_;
  const std::vector<GridPoint>& points_;
  const bool terminal_;
  Clock::time_point begin_, shown_;
  std::size_t ended_ = 0, trained_ = 0;  // points of this start
  double work_ = 0, done_work_ = 0;      // FLOPs of them
  bool open_line_ = false;
};

}  // namespace orthant
