#include "core/trace/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include <orthant/error.h>

#include "core/trace/chrome_events.h"
#include "core/trace/division.h"

namespace orthant {
namespace {

// What is added to times of `rank` to have them on the clock of `first`, and by how much that may be off.
struct Shift {
  std::int64_t ns = 0, error = 0;
};

Shift shift_of(const RankTrace& first, const RankTrace& rank) {
  if (rank.machine == first.machine && !rank.machine.empty()) {
    return {};
  }
  require(!rank.barriers.empty() && rank.barriers.size() == first.barriers.size(),
          "ranks {} and {} are on machines whose clocks differ, and have not taken the same barriers", first.rank,
          rank.rank);
  std::int64_t low = std::numeric_limits<std::int64_t>::min(), high = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < rank.barriers.size(); ++i) {
    low = std::max(low, first.barriers[i][0] - rank.barriers[i][1]);
    high = std::min(high, first.barriers[i][1] - rank.barriers[i][0]);
  }
  require(low <= high, "the barriers of ranks {} and {} contradict each other: their clocks do not run alike",
          first.rank, rank.rank);
  return {low + (high - low) / 2, (high - low + 1) / 2};
}

void move(RankTrace& rank, std::int64_t shift) {
  for (RankTrace::Line& line : rank.lines) {
    for (Span& span : line.spans) {
      span.begin += shift;
      span.end += shift;
    }
  }
}

using CallKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

CallKey key_of(const SpanFacts& f) {
  return {f.group, f.first, f.sequence, f.from, f.to};
}

struct Arrivals {
  std::int64_t last = 0, rank = -1;
  std::size_t ranks = 0;
};

// Of the calls that two ranks or more have recorded.
void find_late(std::vector<RankTrace>& ranks) {
  std::map<CallKey, Arrivals> calls;
  for (const RankTrace& rank : ranks) {
    for (const RankTrace::Line& line : rank.lines) {
      for (const Span& span : line.spans) {
        if (span.kind == SpanKind::collective) {
          Arrivals& call = calls[key_of(span.facts)];
          if (call.ranks++ == 0 || span.begin > call.last) {
            call.last = span.begin;
            call.rank = rank.rank;
          }
        }
      }
    }
  }
  for (RankTrace& rank : ranks) {
    for (RankTrace::Line& line : rank.lines) {
      for (Span& span : line.spans) {
        if (span.kind != SpanKind::collective) {
          continue;
        }
        const Arrivals& call = calls.at(key_of(span.facts));
        if (call.ranks > 1 && call.rank != rank.rank) {
          span.facts.late = call.rank;
          span.facts.met = std::min(call.last, span.end);
        }
      }
    }
  }
}

}  // namespace

JoinedTrace join(std::vector<RankTrace> parts) {
  require(!parts.empty(), "a trace needs the part of one rank at least");
  std::sort(parts.begin(), parts.end(), [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  JoinedTrace joined;
  for (RankTrace& part : parts) {
    const Shift shift = shift_of(parts.front(), part);
    joined.clock_error = std::max(joined.clock_error, static_cast<double>(shift.error) * 1e-9);
    if (&part != &parts.front()) {
      move(part, shift.ns);
    }
    for (RankTrace::Line& line : part.lines) {
      // The one around the others first.
      std::stable_sort(line.spans.begin(), line.spans.end(), [](const Span& a, const Span& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
      });
    }
  }
  joined.ranks = std::move(parts);
  find_late(joined.ranks);
  return joined;
}

std::span<const Span> beginning_in(const RankTrace::Line& line, std::int64_t from, std::int64_t to) {
  const auto before = [](const Span& span, std::int64_t time) { return span.begin < time; };
  const auto first = std::lower_bound(line.spans.begin(), line.spans.end(), from, before);
  return {first, std::lower_bound(first, line.spans.end(), std::max(from, to), before)};
}

namespace {

std::string text_of(const StepPiece& piece) {
  if (piece.share == Share::waiting) {
    return fmt::format("waiting for rank {}", piece.late);
  }
  if (piece.share == Share::bubble) {
    return fmt::format("bubble: waiting for rank {}", piece.late);
  }
  return piece.share == Share::exposed ? "moving: " + piece.what : piece.what;
}

bool is_divided(const Span& span) {
  return span.kind == SpanKind::collective || span.kind == SpanKind::wait;
}

// On tracks beside the main one a collective is divided too: it is overlapped.
void add_overlapped(ChromeEvents& events, const Span& span, int rank, int track, std::int64_t origin) {
  const std::int64_t met = span.facts.late < 0 ? span.begin : std::clamp(span.facts.met, span.begin, span.end);
  if (met > span.begin) {
    events.add(fmt::format("waiting for rank {}", span.facts.late), "waiting", span.begin, met, rank, track, origin);
  }
  if (span.end > met) {
    events.add("moving: " + span.name, "overlapped", met, span.end, rank, track, origin);
  }
}

// What is within a span follows it, also where both begin and end at once.
void add_line(ChromeEvents& events, const JoinedTrace& trace, const RankTrace& rank, const RankTrace::Line& line,
              std::int64_t origin) {
  std::multimap<std::int64_t, StepPiece> within;  // of the main line, by span
  if (line.number == 0) {
    const Division division(trace, rank);
    for (const Span& span : line.spans) {
      if (span.kind == SpanKind::step) {
        for (StepPiece& piece : division.of(span)) {
          within.emplace(piece.leaf, std::move(piece));
        }
      }
    }
  }
  for (std::size_t i = 0; i < line.spans.size(); ++i) {
    const Span& span = line.spans[i];
    events.add(span, rank.rank, line.number, origin);
    if (line.number != 0 && span.kind == SpanKind::collective) {
      add_overlapped(events, span, rank.rank, line.number, origin);
    }
    const auto [begin, end] = within.equal_range(static_cast<std::int64_t>(i));
    for (auto piece = begin; piece != end && is_divided(span); ++piece) {
      const StepPiece& p = piece->second;
      events.add(text_of(p), name_of(p.share), p.begin, p.end, rank.rank, 0, origin);
    }
  }
}

// What a stream is for, by what it did.
std::string title_of(const RankTrace::Line& line) {
  std::map<std::string, std::size_t> seen;
  for (const Span& span : line.spans) {
    if (span.kind == SpanKind::collective || span.kind == SpanKind::transfer) {
      ++seen[span.name];
    }
  }
  if (line.number == 0 || seen.empty()) {
    return line.name;
  }
  const auto most =
      std::max_element(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return line.name + ": " + most->first;
}

}  // namespace

std::string to_chrome_json(const JoinedTrace& trace) {
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  for (const RankTrace& rank : trace.ranks) {
    for (const RankTrace::Line& line : rank.lines) {
      origin = line.spans.empty() ? origin : std::min(origin, line.spans.front().begin);
    }
  }
  ChromeEvents events;
  for (const RankTrace& rank : trace.ranks) {
    events.process(rank.rank, fmt::format("rank {}", rank.rank));
    for (const RankTrace::Line& line : rank.lines) {
      if (line.spans.empty()) {
        continue;
      }
      events.thread(rank.rank, line.number, title_of(line));
      add_line(events, trace, rank, line, origin);
    }
  }
  return events.document(
      nlohmann::json({{"format", "orthant trace 1"}, {"clock_error_seconds", trace.clock_error}}).dump());
}

}  // namespace orthant
