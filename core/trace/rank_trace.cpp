#include "core/trace/rank_trace.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include <orthant/error.h>

#include "core/trace/chrome_events.h"

namespace orthant {

RankTrace take(Trace& trace) {
  RankTrace taken{.rank = trace.rank(), .machine = machine_clock(), .groups = trace.groups()};
  for (std::size_t i = 0; i < trace.tracks(); ++i) {
    Track& track = trace.track(i);
    taken.lines.push_back({track.number(), track.name(), track.take()});
  }
  return taken;
}

std::string machine_clock() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

std::string trace_part_name(int rank) {
  return fmt::format("rank_{}.json", rank);
}

namespace {

constexpr const char* format_name = "orthant trace part 1";

std::int64_t earliest(const RankTrace& trace) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const RankTrace::Line& line : trace.lines) {
    for (const Span& span : line.spans) {
      first = std::min(first, span.begin);
    }
  }
  return first == std::numeric_limits<std::int64_t>::max() ? 0 : first;
}

SpanKind kind_of(const std::string& name) {
  for (const SpanKind kind : {SpanKind::step, SpanKind::phase, SpanKind::compute, SpanKind::collective,
                              SpanKind::transfer, SpanKind::host, SpanKind::wait}) {
    if (name == name_of(kind)) {
      return kind;
    }
  }
  fail("a span of category '{}'", name);
}

Span span_of(const nlohmann::json& event, std::int64_t origin) {
  Span span{.name = event.at("name"), .kind = kind_of(event.at("cat"))};
  span.begin = origin + std::llround(event.at("ts").get<double>() * 1e3);
  span.end = span.begin + std::llround(event.at("dur").get<double>() * 1e3);
  const nlohmann::json& args = event.at("args");
  for (const auto& [key, fact] : fact_keys()) {
    span.facts.*fact = args.value(key, std::int64_t{-1});
  }
  return span;
}

}  // namespace

std::string to_part(const RankTrace& trace) {
  const std::int64_t origin = earliest(trace);
  nlohmann::json other = {{"format", format_name},
                          {"rank", trace.rank},
                          {"stage", trace.stage},
                          {"machine", trace.machine},
                          {"origin_ns", origin},
                          {"barriers_ns", trace.barriers},
                          {"groups", nlohmann::json::array()},
                          {"tracks", nlohmann::json::array()}};
  for (const auto& [number, group] : trace.groups) {
    other["groups"].push_back({{"number", number}, {"name", group.name}, {"members", group.members}});
  }
  ChromeEvents events;
  events.process(trace.rank, fmt::format("rank {}", trace.rank));
  for (const RankTrace::Line& line : trace.lines) {
    other["tracks"].push_back({{"number", line.number}, {"name", line.name}});
    if (!line.spans.empty()) {
      events.thread(trace.rank, line.number, line.name);
    }
    for (const Span& span : line.spans) {
      events.add(span, trace.rank, line.number, origin);
    }
  }
  return events.document(other.dump());
}

RankTrace read_part(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  require(in.is_open(), "cannot read '{}'", file.string());
  std::ostringstream text;
  text << in.rdbuf();
  try {
    const nlohmann::json json = nlohmann::json::parse(text.str());
    const nlohmann::json& other = json.at("otherData");
    require(other.at("format") == format_name, "its format is not '{}'", format_name);
    const std::int64_t origin = other.at("origin_ns");
    RankTrace trace{.rank = other.at("rank"), .stage = other.at("stage"), .machine = other.at("machine")};
    trace.barriers = other.at("barriers_ns").get<std::vector<std::array<std::int64_t, 2>>>();
    for (const nlohmann::json& group : other.at("groups")) {
      trace.groups[group.at("number")] = {group.at("name"), group.at("members").get<std::vector<int>>()};
    }
    std::map<int, std::size_t> line_of;
    for (const nlohmann::json& track : other.at("tracks")) {
      line_of[track.at("number")] = trace.lines.size();
      trace.lines.push_back({track.at("number"), track.at("name"), {}});
    }
    for (const nlohmann::json& event : json.at("traceEvents")) {
      if (event.at("ph") == "X") {
        trace.lines.at(line_of.at(event.at("tid"))).spans.push_back(span_of(event, origin));
      }
    }
    return trace;
  } catch (const std::exception& reason) {
    fail("'{}' is not a rank's part of a trace: {}", file.string(), reason.what());
  }
}

}  // namespace orthant
