// What one rank has recorded, as a value and as a file: the rank's part of a trace. A part is a trace by itself that
// chrome://tracing and ui.perfetto.dev open; what only the join needs stands under "otherData".
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/trace/trace.h"

namespace orthant {

struct RankTrace {
  struct Line {
    int number = 0;  // 0: the main stream's
    std::string name;
    std::vector<Span> spans;
  };
  int rank = 0;
  int stage = 0;             // of a pipeline
  std::string machine = {};  // ranks of one machine share a clock
  // Of barriers that all ranks took together: when this rank came, when it went on; ns.
  std::vector<std::array<std::int64_t, 2>> barriers = {};
  std::map<std::int64_t, TracedGroup> groups = {};
  std::vector<Line> lines = {};
};

// All that is recorded, and no longer in `trace` then. REQUIRES: nothing is recorded meanwhile.
RankTrace take(Trace& trace);

// Names this machine's clock: the same for processes that share one. Empty where the system does not say.
std::string machine_clock();

// File name of a rank's part: rank_0.json.
std::string trace_part_name(int rank);
std::string to_part(const RankTrace& trace);
// Errors: Error naming the file where it is no part.
RankTrace read_part(const std::filesystem::path& file);

}  // namespace orthant
