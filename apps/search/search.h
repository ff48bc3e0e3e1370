// The search: every legal layout, the bytes of each first, then a time that it cannot beat, then the clock for those
// that could still be among the answers.
//
// Nothing is left out of the answer: a layout is timed unless a bound shows that it is slower than the best few, slower
// than the best of each class that it is of (tensor 16, micro-batch 4, ...), and on no step of the frontier of time and
// memory; or that it does not fit. tests/search compares all of these with the timing of all layouts.
//
// Thread safety: pure but for the functions of the Problem. The same problem gives the same answer, whatever the
// threads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/cost/memory.h"
#include "apps/search/candidate.h"

namespace orthant::search {

// A layout with its time and its bytes on the rank that holds most.
struct Timed {
  Candidate candidate;
  cost::StepTime time;
  cost::StageMemory memory;
};
bool better(const Timed& a, const Timed& b);  // by time, then bytes, then what varies

enum class Kind {
  tensor,
  sequence,
  pipeline,
  data,
  expert,
  zero,
  schedule,
  micro_batch,
  recompute,
  sequence_parallel,
  experts,
  method,
  travel,
  innermost,
  states
};
inline constexpr int kinds = 15;
const char* name_of(Kind kind);

// All layouts that have one value in common.
struct Class {
  Kind kind = Kind::tensor;
  std::int64_t value = 1;
  bool operator<(const Class& other) const { return std::pair(kind, value) < std::pair(other.kind, other.value); }
  bool operator==(const Class&) const = default;
};
std::vector<Class> classes_of(const Candidate& candidate);
std::string text_of(const Class& of);  // "tensor 16"

// The best of a class.
struct ClassBest {
  Timed best;         // where `fits`
  bool fits = false;  // one of them does
  double least = 0;   // bytes: where none fits, what each of them needs at least
};

// What became of all layouts.
struct Counts {
  std::uint64_t legal = 0;
  std::uint64_t too_large_by_bound = 0;  // bytes that they need at least are too many already
  std::uint64_t too_large = 0;           // counted
  std::uint64_t slower_by_work = 0;      // the work alone takes longer than an answer
  std::uint64_t slower_by_bound = 0;     // and with what must come before and after it
  std::uint64_t timed = 0;               // on the clock
  std::uint64_t accounted() const { return too_large_by_bound + too_large + slower_by_work + slower_by_bound + timed; }
};

// For the picture: layouts by time and memory, on a grid of logarithms.
struct Cell {
  int time = 0, memory = 0;
  auto operator<=>(const Cell&) const = default;
};
inline constexpr double cells_a_factor_two = 12;
Cell cell_of(double seconds, double bytes);

struct Answer {
  std::vector<Timed> best;             // the fastest first
  std::map<Class, ClassBest> classes;  // of all that some legal layout has
  std::vector<Timed> frontier;         // the fastest within a part of the memory, 1/16, 2/16, ... of it; each once
  Counts counts;
  std::map<Cell, std::uint64_t> bounded;         // at times and bytes that they have at least
  std::vector<std::pair<double, double>> timed;  // seconds and bytes of those on the clock
  Candidate smallest;                            // of all legal ones, by the least bytes
  double smallest_bytes = 0;
  // Axes' sizes that divide the ranks and that the program does not take, with its reason.
  std::vector<std::pair<Class, std::string>> refused;
};

struct Options {
  std::size_t top = 5;
  int threads = 2;
};

// Errors: ConfigError where no layout is legal, with the reasons; none where no layout fits: `best` is empty then.
Answer search(const Problem& problem, const Options& options = {});

// One layout, timed as the search does. REQUIRES: refusal() is empty.
Timed timed(const Problem& problem, const Candidate& candidate);

}  // namespace orthant::search
