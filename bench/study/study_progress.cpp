#include "bench/study/study_progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "bench/study/point_run.h"
#include "bench/study/timing.h"
#include "core/base/output.h"
#include "core/run/metrics.h"

namespace orthant {
namespace {

constexpr double start_seconds = 0.5;  // of a run, until its first step: for estimates

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void StudyProgress::begin(const std::vector<const GridPoint*>& all, int places) {
  for (const GridPoint* point : all) {
    work_ += point->flops();
  }
  trained_ = all.size();
  begin_ = Clock::now();
  put("{}: {} of {} points to train, {} at a time\n", study_.name, all.size(), points_.size(), places);
  std::fflush(stdout);
}

void StudyProgress::ended(const GridPoint& point, const std::string& outcome, std::optional<double> seconds) {
  ++ended_;
  done_work_ += point.flops();
  put("[{}/{}] {}: {}, {}; ETA {}\n", ended_, trained_, point.id, outcome,
      seconds ? human_duration(*seconds) : "resumed", human_duration(seconds_left(done_work_)));
  std::fflush(stdout);
}

// Of training and of timing, where so many FLOPs of the training have been done: timing is work of the same kind, and
// starts a process each time.
double StudyProgress::seconds_left(double done) const {
  double timing = 0;
  const std::vector<const GridPoint*> shapes = shapes_of(points_);
  for (const GridPoint* shape : shapes) {
    timing += shape->flops() * static_cast<double>(study_.timing_steps) / static_cast<double>(shape->steps);
  }
  const auto rounds = static_cast<double>(study_.timing_rounds);
  const double rate = done / since(begin_);
  return rate > 0
             ? (work_ - done + rounds * timing) / rate + rounds * static_cast<double>(shapes.size()) * start_seconds
             : 0;
}

void StudyProgress::running(const std::vector<PointQueue::Running>& running) {
  if (!terminal_ || since(shown_) < 2) {
    return;
  }
  shown_ = Clock::now();
  double done = done_work_;
  std::string text;
  for (const PointQueue::Running& one : running) {
    const double part = progress_of(folder_.run_of(*one.point), one.point->steps);
    done += part * one.point->flops();
    text += fmt::format("{} {:.0f} %  ", one.point->id, 100 * part);
  }
  overwritten(fmt::format("{}ETA {}", text, human_duration(seconds_left(done))));
}

void StudyProgress::overwritten(const std::string& text) {
  put("\r{}\x1b[K", text);
  std::fflush(stdout);
  open_line_ = true;
}

void StudyProgress::clear_line() {
  if (open_line_) {
    put("\r\x1b[K");
    open_line_ = false;
  }
}

}  // namespace orthant
