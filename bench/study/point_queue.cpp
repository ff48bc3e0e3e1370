#include "bench/study/point_queue.h"

#include <signal.h>

#include <algorithm>

#include "bench/study/stop_points.h"
#include "core/base/stop_signals.h"

namespace orthant {
int PointQueue::places_of(const GridPoint& point) const {
  return std::min(point.ranks, slots_);
}

void PointQueue::start_what_fits(std::vector<const GridPoint*>& points,
                                 const std::function<void(const GridPoint&)>& starts) {
  int left = slots_;
  for (const Running& one : running_) {
    left -= one.places;
  }
  for (auto next = points.begin(); next != points.end() && left > 0;) {
    const int places = places_of(**next);
    if (places > left) {
      ++next;
      continue;
    }
    const std::int64_t threads = std::max(1, cores_ * places / (slots_ * (*next)->ranks));
    starts(**next);
    running_.push_back({*next, ChildProcess(train_command(folder_, **next, threads), folder_.log_of(**next)), places});
    left -= places;
    next = points.erase(next);
  }
}

void PointQueue::collect(bool stopped, const std::function<void(const Ended&)>& ended) {
  std::vector<Running> still;
  for (Running& one : running_) {
    if (one.process.is_running()) {
      still.push_back(std::move(one));
    } else {
      ended({one.point, one.process.ending(), stopped});
    }
  }
  running_ = std::move(still);
}

bool PointQueue::run(std::vector<const GridPoint*> points, const std::function<void(const GridPoint&)>& starts,
                     const std::function<void(const Ended&)>& ended,
                     const std::function<void(const std::vector<Running>&)>& waiting) {
  // The longest first: the last ones to end are then short, and places stand empty for a short time only.
  std::stable_sort(points.begin(), points.end(),
                   [](const GridPoint* a, const GridPoint* b) { return a->flops() > b->flops(); });
  while (!points.empty() || !running_.empty()) {
    start_what_fits(points, starts);
    if (stop_requested(0.5)) {
      for (const Running& one : running_) {
        one.process.signal(SIGTERM);  // the step ends, and is saved
      }
      while (!running_.empty()) {
        wait_or_give_up(0.1);
        collect(true, ended);
      }
      return false;
    }
    collect(false, ended);
    waiting(running_);
  }
  return true;
}

}  // namespace orthant
