// The JSON of trace events that chrome://tracing and ui.perfetto.dev read ("Trace Event Format", Google, 2016).
// A process is a rank, a thread is a track. Times are microseconds with three decimals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/trace/trace.h"

namespace orthant {

// The names of the facts of a span under "args".
const std::vector<std::pair<const char*, std::int64_t SpanFacts::*>>& fact_keys();

class ChromeEvents {
 public:
  void process(int rank, const std::string& name);
  void thread(int rank, int track, const std::string& name);
  // `origin`: the time that is 0.
  void add(const Span& span, int rank, int track, std::int64_t origin);
  // The same with a category of its own and no facts.
  void add(const std::string& name, std::string_view category, std::int64_t begin, std::int64_t end, int rank,
           int track, std::int64_t origin);
  // other_data: a JSON object.
  std::string document(const std::string& other_data) const;

 private:
  void metadata(const char* kind, int rank, int track, const std::string& key, const std::string& value);
  std::string events_;
};

}  // namespace orthant
