// How the time of a step is divided among what it went into, on the main stream of a rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/trace/join.h"

namespace orthant {

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

// Of one rank. Made once for all of its steps: it looks at each span once, and finds those of a step by their time.
class Division {
 public:
  // REQUIRES: both outlive it, and `rank` is one of the trace's.
  Division(const JoinedTrace& trace, const RankTrace& rank);

  // `step`: a span of kind step of the rank's main line.
  //   compute  an operation runs, on the main stream or on one that it waits for
  //   waiting  a collective waits for a rank that has not come yet
  //   bubble   the same, for a rank of another stage
  //   exposed  a collective that the main stream runs or waits for, once all have come
  //   other    transfers to and from the host, work on the host, and what no operation covers, by phase
  std::vector<StepPiece> of(const Span& step) const;

 private:
  struct Interval {
    std::int64_t begin, end;
    bool empty() const { return begin >= end; }
    Interval with(std::int64_t from, std::int64_t to) const;
  };
  // What no operation is divided into further, in order and apart: of a line, by index. Steps and phases are left out,
  // and what lies within another one.
  using Leaves = std::vector<std::size_t>;
  // The innermost phase at a time.
  struct PhasePart {
    Interval time;
    const Span* phase;
  };
  // A step's pieces as they come about.
  struct Pieces {
    std::vector<StepPiece> all;
    std::int64_t leaf = -1;
    void add(Interval in, Share share, const std::string& what, std::int64_t late = -1);
  };

  static Leaves leaves_of(const RankTrace::Line& line);
  static std::vector<PhasePart> innermost_phases(const RankTrace::Line& line);
  // Calls work(index of the span, its part of `in`) for the leaves of a line, and rest(interval) for what lies between.
  template <class Work, class Rest>
  void for_each_leaf(const RankTrace::Line& line, Interval in, Work work, Rest rest) const;
  void divide(Pieces& to, const Span& span, Interval in, int depth) const;
  void divide_wait(Pieces& to, const Span& wait, Interval in, int depth) const;
  void divide_gap(Pieces& to, Interval in, const Span& step) const;
  int stage_of(std::int64_t rank) const;

  const JoinedTrace& trace_;
  const RankTrace& rank_;
  std::map<int, Leaves> leaves_;                 // by number of a line
  std::map<int, const RankTrace::Line*> lines_;  // beside the main one
  std::vector<PhasePart> phases_;                // of the main line, in order and apart
};

}  // namespace orthant
