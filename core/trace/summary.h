// Where the time of the traced steps went, rank by rank, and which rank is late and why. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/trace/join.h"

namespace orthant {

// Seconds per step, the mean of the traced steps: compute + exposed + waiting + bubble + other is `seconds`.
struct RankSummary {
  int rank = 0;
  double seconds = 0;
  double compute = 0, exposed = 0, waiting = 0, bubble = 0, other = 0;  // Division tells what they are
  double overlapped = 0;                           // what collectives move while the main stream does something else
  std::map<std::string, double> operations = {};   // of `compute`
  std::map<std::string, double> collectives = {};  // of `exposed`
  std::map<std::string, double> others = {};       // of `other`
  std::map<int, double> waiting_for = {};          // of `waiting`, by world rank
  std::map<int, double> bubble_for = {};
  double expert_rows = 0;  // rows that the experts' products work on, per step
};

struct TraceSummary {
  std::int64_t first = 0, last = 0;  // traced steps, counted from 1
  double step_seconds = 0;           // median over steps, of the rank for which a step takes longest
  double clock_error = 0;            // seconds
  std::vector<RankSummary> ranks = {};
  std::optional<int> late_rank = {};  // for whom the others wait most, where that is worth a word
  std::string why = {};               // a sentence; says too that no rank is late
};

// Errors: Error where the trace has no step.
TraceSummary summarise(const JoinedTrace& trace);

// For the run's report; the keys are documented in docs/guides/timeline.md.
std::string to_json(const TraceSummary& summary);
// A few lines for people.
std::string text_of(const TraceSummary& summary);

}  // namespace orthant
