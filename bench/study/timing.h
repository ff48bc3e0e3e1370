// How fast points are, each alone on the machine.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/study/grid.h"
#include "bench/study/point_run.h"
#include "bench/study/study_file.h"
#include "bench/study/timing_file.h"

namespace orthant {

// What a trial of one point measured: tokens a second of the whole machine.
struct SideBySide {
  int places = 1;                // the faster choice
  double one_after_another = 0;  // one run with all cores
  double together = 0;           // several runs at a time, each with its part of the cores
};

// Runs the point both ways for a few steps: one run with all cores, and `count` runs with equal parts of them. Where
// one fails, one place is the choice, and a warning says why. Nothing where a request to stop came.
// REQUIRES: 1 <= count <= cores.
std::optional<SideBySide> try_side_by_side(const StudyFolder& folder, const GridPoint& point, int cores, int count);

// One point of each shape, in the order of the points.
std::vector<const GridPoint*> shapes_of(const std::vector<GridPoint>& points);

// What was measured of a shape, one entry a round.
struct ShapeTimes {
  std::vector<double> step_seconds;  // medians of `orthant train`
  std::vector<std::string> why;      // what why_command printed

  void add(const TimedRound& round);
};

// Of each shape (GridPoint::shape). In turns: every shape once, then every shape again, so that a machine that slows
// down slows all of them. A shape that cannot run has no times. `told` is called before each run, with its number and
// how many there are. Nothing where a request to stop came: the rounds of before are kept in timings.json, and the next
// call goes on behind them.
std::optional<std::map<std::string, ShapeTimes>> time_shapes(const StudyFolder& folder,
                                                             const std::vector<const GridPoint*>& shapes,
                                                             const StudyFile& study, int cores,
                                                             const std::function<void(std::size_t, std::size_t)>& told);

}  // namespace orthant
