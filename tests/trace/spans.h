// Traces made by hand, and what every trace must satisfy.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/trace/join.h"
#include "core/trace/summary.h"

namespace orthant::trace_test {

inline Span span(std::string name, SpanKind kind, std::int64_t begin, std::int64_t end, SpanFacts facts = {}) {
  return {std::move(name), kind, begin, end, facts};
}

inline Span call(std::string name, std::int64_t sequence, std::int64_t begin, std::int64_t end) {
  return span(std::move(name), SpanKind::collective, begin, end, {.group = 0, .first = 0, .sequence = sequence});
}

inline RankTrace rank_trace(int rank, std::vector<Span> main, std::vector<Span> side = {}, int stage = 0) {
  RankTrace trace;
  trace.rank = rank;
  trace.stage = stage;
  trace.machine = "here";
  trace.lines = {{0, "main", std::move(main)}, {1, "side 1", std::move(side)}};
  return trace;
}

inline const RankSummary& of_rank(const TraceSummary& summary, int rank) {
  return *std::find_if(summary.ranks.begin(), summary.ranks.end(), [&](const auto& r) { return r.rank == rank; });
}

// Every part of a rank's step is told, and nothing twice.
inline void expect_sums(const TraceSummary& summary) {
  for (const RankSummary& rank : summary.ranks) {
    EXPECT_NEAR(rank.compute + rank.exposed + rank.waiting + rank.bubble + rank.other, rank.seconds, 1e-12)
        << "rank " << rank.rank;
    const auto sum = [](const auto& parts) {
      double total = 0;
      for (const auto& [name, seconds] : parts) {
        total += seconds;
      }
      return total;
    };
    EXPECT_NEAR(sum(rank.operations), rank.compute, 1e-12);
    EXPECT_NEAR(sum(rank.collectives), rank.exposed, 1e-12);
    EXPECT_NEAR(sum(rank.waiting_for), rank.waiting, 1e-12);
    EXPECT_NEAR(sum(rank.bubble_for), rank.bubble, 1e-12);
    EXPECT_NEAR(sum(rank.others), rank.other, 1e-12);
  }
}

// As a viewer reads the file: on a track each event lies within those that are open, or behind them.
inline void expect_nested(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> tracks;  // ns
  for (const nlohmann::json& event : json.at("traceEvents")) {
    ASSERT_TRUE(event.at("ph") == "X" || event.at("ph") == "M") << event.dump();
    if (event.at("ph") == "X") {
      const std::int64_t begin = std::llround(event.at("ts").get<double>() * 1e3);
      const std::int64_t length = std::llround(event.at("dur").get<double>() * 1e3);
      ASSERT_GE(length, 0) << event.dump();
      tracks[{event.at("pid"), event.at("tid")}].emplace_back(begin, begin + length);
    }
  }
  for (auto& [track, events] : tracks) {
    std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<std::int64_t> open;  // ends
    for (const auto& [begin, end] : events) {
      while (!open.empty() && open.back() <= begin) {
        open.pop_back();
      }
      if (!open.empty()) {
        ASSERT_LE(end, open.back()) << "rank " << track.first << ", track " << track.second << ": [" << begin << ", "
                                    << end << "]";
      }
      open.push_back(end);
    }
  }
}

}  // namespace orthant::trace_test
