// The parts of all ranks as one: on one clock, with the rank that came last in each collective. Pure functions; their
// time grows as that of sorting does with what was recorded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/trace/rank_trace.h"

namespace orthant {

struct JoinedTrace {
  std::vector<RankTrace> ranks;  // in the order of their ranks, in the time of the first of them
  double clock_error = 0;        // seconds by which times of two ranks may be off, at most; 0 on one machine
};

// Times of a rank of another machine are moved so that barriers agree: a rank leaves a barrier after all have come. The
// widest interval that this leaves is the error. REQUIRES: parts of one recording, each rank once.
// Errors: Error where clocks differ and there is no barrier, or barriers contradict each other.
JoinedTrace join(std::vector<RankTrace> parts);

// The spans of a joined line that begin in [from, to). They lie in the order of their begins.
std::span<const Span> beginning_in(const RankTrace::Line& line, std::int64_t from, std::int64_t to);

// One file for chrome://tracing and ui.perfetto.dev: what ranks recorded, waits divided.
std::string to_chrome_json(const JoinedTrace& trace);

}  // namespace orthant
