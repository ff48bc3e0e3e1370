// The parts of all ranks as one: on one clock, with the rank that came last in each collective, and with the time of
// each step divided among what it went into. Pure functions.
#pragma once

#include <cstdint>
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

enum class Share { compute, exposed, waiting, bubble, other };
const char* name_of(Share share);

// A piece of a step on the main stream of a rank. Pieces of a step tile it.
struct StepPiece {
  std::int64_t begin = 0, end = 0;  // ns
  Share share = Share::other;
  std::string what;        // the operation, the collective, or the phase
  std::int64_t late = -1;  // waiting and bubble: the world rank that is waited for
  std::int64_t leaf = -1;  // index of the main line's span that it is a part of; -1: of none
};

// `step`: a span of kind step of the rank's main line.
//   compute  an operation runs, on the main stream or on one that it waits for
//   waiting  a collective waits for a rank that has not come yet
//   bubble   the same, for a rank of another stage
//   exposed  a collective that the main stream runs or waits for, once all have come
//   other    transfers to and from the host, work on the host, and what no operation covers, by phase
std::vector<StepPiece> pieces_of(const JoinedTrace& trace, const RankTrace& rank, const Span& step);

// One file for chrome://tracing and ui.perfetto.dev: what ranks recorded, waits divided.
std::string to_chrome_json(const JoinedTrace& trace);

}  // namespace orthant
