#include "bench/study/timing.h"

#include <orthant/error.h>

#include <signal.h>

#include <algorithm>
#include <set>

#include "bench/study/stop_points.h"
#include "bench/study/timing_file.h"
#include "core/base/output.h"
#include "core/base/stop_signals.h"
#include "core/base/text_file.h"
#include "core/checkpoint/disk.h"
#include "parallel/launch/child_process.h"

namespace orthant {
namespace {

constexpr std::int64_t warm_up = 3;      // steps that no time is taken of
constexpr std::int64_t trial_steps = 8;  // of a trial, after them

// False where a request to stop came first: the runs are told. Errors: Error at a second one (stop_points.h).
bool wait_for(std::vector<ChildProcess>& runs) {
  const auto any = [&] {
    return std::any_of(runs.begin(), runs.end(), [](ChildProcess& run) { return run.is_running(); });
  };
  while (any()) {
    if (stop_requested(0.05)) {
      for (const ChildProcess& run : runs) {
        run.signal(SIGTERM);  // nothing of it is kept, but its ranks have ended when it has
      }
      while (any()) {
        wait_or_give_up(0.05);
      }
      return false;
    }
  }
  return true;
}

struct TimedRuns {
  bool stopped = false;
  std::vector<double> step_seconds;  // the median of each run; empty where one failed
  std::string why;                   // it failed
};

// `count` runs of the point at the same time.
TimedRuns timed_runs(const StudyFolder& folder, const GridPoint& point, int count, std::int64_t threads,
                     std::int64_t steps) {
  const Disk disk;
  disk.remove_all(folder.timing());
  disk.create_folder(folder.timing());
  std::vector<ChildProcess> runs;
  const std::filesystem::path log = folder.timing() / "timing.log";
  for (int i = 0; i < count; ++i) {
    runs.emplace_back(timing_command(folder, point, threads, warm_up + steps, std::to_string(i)), log);
  }
  TimedRuns timed;
  timed.stopped = !wait_for(runs);
  for (int i = 0; i < count && !timed.stopped; ++i) {
    if (runs[static_cast<std::size_t>(i)].ending().exit_code() != 0) {
      timed.why = end_of_log(log);
      timed.step_seconds.clear();
      break;
    }
    timed.step_seconds.push_back(median(step_seconds_of(folder.timing() / std::to_string(i), warm_up)));
  }
  disk.remove_all(folder.timing());
  return timed;
}

// What why_command prints; nothing where a request to stop came, empty where it failed.
std::optional<std::string> why_of(const StudyFolder& folder, const GridPoint& point, std::int64_t threads,
                                  std::int64_t steps) {
  const Disk disk;
  disk.create_folder(folder.timing());
  const std::filesystem::path log = folder.timing() / "why.log";
  std::vector<ChildProcess> run;
  run.emplace_back(why_command(folder, point, threads, steps), log);
  if (!wait_for(run)) {
    return std::nullopt;
  }
  const bool good = run.front().ending().exit_code() == 0;
  const std::string printed = good ? read_text_file(log).value_or("") : "";
  if (!good) {
    say("orthant: warning: point {} does not say what a step is made of:\n{}", point.id, end_of_log(log));
  }
  disk.remove_all(folder.timing());
  return printed;
}

double tokens_per_second(const TimedRuns& runs, const GridPoint& point) {
  double rate = 0;
  for (double seconds : runs.step_seconds) {
    rate += seconds > 0 ? static_cast<double>(point.tokens) / static_cast<double>(point.steps) / seconds : 0;
  }
  return rate;
}

}  // namespace

std::optional<SideBySide> try_side_by_side(const StudyFolder& folder, const GridPoint& point, int cores, int count) {
  const TimedRuns alone = timed_runs(folder, point, 1, cores, trial_steps);
  const TimedRuns together = alone.stopped ? alone : timed_runs(folder, point, count, cores / count, trial_steps);
  if (alone.stopped || together.stopped) {
    return std::nullopt;
  }
  for (const TimedRuns* runs : {&alone, &together}) {
    if (!runs->why.empty()) {  // too little memory for so many, say: points may run all the same, one after another
      say("orthant: warning: a trial of point {} failed, points train one after another:\n{}", point.id, runs->why);
      return SideBySide{};
    }
  }
  SideBySide found{1, tokens_per_second(alone, point), tokens_per_second(together, point)};
  found.places = found.together > found.one_after_another ? count : 1;
  return found;
}

std::vector<const GridPoint*> shapes_of(const std::vector<GridPoint>& points) {
  std::vector<const GridPoint*> shapes;
  std::set<std::string> known;
  for (const GridPoint& point : points) {
    if (known.insert(point.shape()).second) {
      shapes.push_back(&point);
    }
  }
  return shapes;
}

void ShapeTimes::add(const TimedRound& round) {
  if (round.step_seconds) {
    step_seconds.push_back(*round.step_seconds);
  }
  if (!round.why.empty()) {
    why.push_back(round.why);
  }
}

std::optional<std::map<std::string, ShapeTimes>> time_shapes(
    const StudyFolder& folder, const std::vector<const GridPoint*>& shapes, const StudyFile& study, int cores,
    const std::function<void(std::size_t, std::size_t)>& told) {
  std::map<std::string, ShapeTimes> times;
  const auto rounds = static_cast<std::size_t>(study.timing_rounds);
  TimingFile kept(folder.timings(), cores, study.timing_steps);
  for (std::size_t run = 0; run < rounds * shapes.size(); ++run) {
    const GridPoint& point = *shapes[run % shapes.size()];
    const std::size_t round = run / shapes.size();
    ShapeTimes& all = times[point.shape()];
    if (const std::optional<TimedRound> known = kept.find(point.shape(), round)) {
      all.add(*known);
      continue;
    }
    told(run, rounds * shapes.size());
    const std::int64_t threads = std::max(1, cores / point.ranks);
    const TimedRuns timed = timed_runs(folder, point, 1, threads, study.timing_steps);
    if (timed.stopped) {
      return std::nullopt;
    }
    if (!timed.why.empty()) {
      say("orthant: warning: point {} cannot be timed:\n{}", point.id, timed.why);
    }
    const std::optional<std::string> why = why_of(folder, point, threads, study.timing_steps);
    if (!why) {
      return std::nullopt;
    }
    const TimedRound measured{
        timed.step_seconds.empty() ? std::nullopt : std::optional<double>(timed.step_seconds.front()), *why};
    kept.add(point.shape(), round, measured);
    all.add(measured);
  }
  return times;
}

}  // namespace orthant
