// The points that train at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/study/grid.h"
#include "bench/study/point_run.h"
#include "parallel/launch/child_process.h"

namespace orthant {

// Runs points on `slots` places, each with an equal part of the machine's threads. A point with more ranks than one
// takes as many places, at most all.
class PointQueue {
 public:
  struct Ended {
    const GridPoint* point = nullptr;
    Ending ending;
    bool stopped = false;  // it was told to stop, and may have ended anyhow
  };
  struct Running {
    const GridPoint* point = nullptr;
    ChildProcess process;
    int places = 1;
  };

  PointQueue(StudyFolder folder, int slots, int cores) : folder_(std::move(folder)), slots_(slots), cores_(cores) {}

  // Runs all, those that take longest first. `starts` and `ended` are called for each, `waiting` about twice a second.
  // Returns false where a request to stop ended it: points that ran have been told, and have ended. Errors: Error at a
  // second request (stop_points.h); then they are killed when this ends.
  bool run(std::vector<const GridPoint*> points, const std::function<void(const GridPoint&)>& starts,
           const std::function<void(const Ended&)>& ended,
           const std::function<void(const std::vector<Running>&)>& waiting);

 private:
  void start_what_fits(std::vector<const GridPoint*>& points, const std::function<void(const GridPoint&)>& starts);
  int places_of(const GridPoint& point) const;
  void collect(bool stopped, const std::function<void(const Ended&)>& ended);

  StudyFolder folder_;
  int slots_, cores_;
  std::vector<Running> running_;
};

}  // namespace orthant
