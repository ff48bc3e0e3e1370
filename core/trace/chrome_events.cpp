#include "core/trace/chrome_events.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace orthant {

const std::vector<std::pair<const char*, std::int64_t SpanFacts::*>>& fact_keys() {
  static const std::vector<std::pair<const char*, std::int64_t SpanFacts::*>> keys = {
      {"step", &SpanFacts::step},   {"rows", &SpanFacts::rows},        {"useful", &SpanFacts::useful},
      {"bytes", &SpanFacts::bytes}, {"flops", &SpanFacts::flops},      {"group", &SpanFacts::group},
      {"first", &SpanFacts::first}, {"number", &SpanFacts::sequence},  {"from", &SpanFacts::from},
      {"to", &SpanFacts::to},       {"of_track", &SpanFacts::of_track}};
  return keys;
}

namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Nanoseconds as microseconds, exactly.
std::string microseconds(std::int64_t ns) {
  const std::int64_t size = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

}  // namespace

void ChromeEvents::metadata(const char* kind, int rank, int track, const std::string& key, const std::string& value) {
  events_ += fmt::format("{}{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"{}\":{}}}}}",
                         events_.empty() ? "" : ",\n", kind, rank, track, key, value);
}

void ChromeEvents::process(int rank, const std::string& name) {
  metadata("process_name", rank, 0, "name", quoted(name));
  metadata("process_sort_index", rank, 0, "sort_index", std::to_string(rank));
}

void ChromeEvents::thread(int rank, int track, const std::string& name) {
  metadata("thread_name", rank, track, "name", quoted(name));
  metadata("thread_sort_index", rank, track, "sort_index", std::to_string(track));
}

void ChromeEvents::add(const Span& span, int rank, int track, std::int64_t origin) {
  add(span.name, name_of(span.kind), span.begin, span.end, rank, track, origin);
  events_.pop_back();
  events_ += ",\"args\":{";
  const char* between = "";
  for (const auto& [key, fact] : fact_keys()) {
    if (span.facts.*fact >= 0) {
      events_ += fmt::format("{}\"{}\":{}", between, key, span.facts.*fact);
      between = ",";
    }
  }
  events_ += "}}";
}

void ChromeEvents::add(const std::string& name, std::string_view category, std::int64_t begin, std::int64_t end,
                       int rank, int track, std::int64_t origin) {
  events_ += fmt::format("{}{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{},\"dur\":{},\"pid\":{},\"tid\":{}}}",
                         events_.empty() ? "" : ",\n", quoted(name), category, microseconds(begin - origin),
                         microseconds(end - begin), rank, track);
}

std::string ChromeEvents::document(const std::string& other_data) const {
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\n\"traceEvents\":[\n{}\n]}}\n", other_data,
                     events_);
}

}  // namespace orthant
