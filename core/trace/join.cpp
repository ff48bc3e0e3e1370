#include "core/trace/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include <orthant/error.h>

#include "core/trace/chrome_events.h"

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

const char* name_of(Share share) {
  switch (share) {
    case Share::compute: return "compute";
    case Share::exposed: return "exposed";
    case Share::waiting: return "waiting";
    case Share::bubble: return "bubble";
    case Share::other: return "other";
  }
  return "?";
}

namespace {

struct Interval {
  std::int64_t begin, end;
  bool empty() const { return begin >= end; }
  Interval with(std::int64_t from, std::int64_t to) const { return {std::max(begin, from), std::min(end, to)}; }
};

bool is_leaf(const Span& span) {
  return span.kind != SpanKind::step && span.kind != SpanKind::phase;
}

class Division {
 public:
  Division(const JoinedTrace& trace, const RankTrace& rank) : trace_(trace), rank_(rank) {
    for (const Span& span : rank_.lines.front().spans) {
      if (span.kind == SpanKind::phase) {
        phases_.push_back(&span);
      }
    }
  }

  std::vector<StepPiece> of(const Span& step) {
    std::int64_t at = step.begin;
    const std::vector<Span>& spans = rank_.lines.front().spans;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Interval part = Interval{spans[i].begin, spans[i].end}.with(at, step.end);
      if (is_leaf(spans[i]) && !part.empty()) {
        gap({at, part.begin}, step);
        leaf_ = static_cast<std::int64_t>(i);
        divide(spans[i], part, 0);
        leaf_ = -1;
        at = part.end;
      }
    }
    gap({at, step.end}, step);
    return std::move(pieces_);
  }

 private:
  void add(Interval in, Share share, const std::string& what, std::int64_t late = -1) {
    if (!in.empty()) {
      pieces_.push_back({in.begin, in.end, share, what, late, leaf_});
    }
  }

  int stage_of(std::int64_t rank) const {
    const auto found = std::find_if(trace_.ranks.begin(), trace_.ranks.end(),
                                    [&](const RankTrace& other) { return other.rank == rank; });
    return found == trace_.ranks.end() ? rank_.stage : found->stage;
  }

  void divide(const Span& span, Interval in, int depth) {
    switch (span.kind) {
      case SpanKind::step:
      case SpanKind::phase: break;
      case SpanKind::compute: return add(in, Share::compute, span.name);
      case SpanKind::transfer: return add(in, Share::other, "transfers");
      case SpanKind::host: return add(in, Share::other, span.name);
      case SpanKind::collective: {
        const std::int64_t met = span.facts.late < 0 ? in.begin : std::clamp(span.facts.met, in.begin, in.end);
        const bool bubble = span.facts.late >= 0 && stage_of(span.facts.late) != rank_.stage;
        add({in.begin, met}, bubble ? Share::bubble : Share::waiting, span.name, span.facts.late);
        return add({met, in.end}, Share::exposed, span.name);
      }
      case SpanKind::wait: return divide_wait(span, in, depth);
    }
  }

  // What the other stream does meanwhile.
  void divide_wait(const Span& wait, Interval in, int depth) {
    constexpr int deepest = 4;  // streams that wait for each other in turn
    const RankTrace::Line* other = nullptr;
    for (const RankTrace::Line& line : rank_.lines) {
      other = line.number == wait.facts.of_track && line.number != 0 ? &line : other;
    }
    if (other == nullptr || depth == deepest) {
      return add(in, Share::other, "waiting for a stream");
    }
    const std::string rest = "waiting for stream '" + other->name + "'";
    std::int64_t at = in.begin;
    for (const Span& span : other->spans) {
      const Interval part = Interval{span.begin, span.end}.with(at, in.end);
      if (is_leaf(span) && !part.empty()) {
        add({at, part.begin}, Share::other, rest);
        divide(span, part, depth + 1);
        at = part.end;
      }
    }
    add({at, in.end}, Share::other, rest);
  }

  // No operation covers it: it is the host's, in the innermost phase.
  void gap(Interval in, const Span& step) {
    while (!in.empty()) {
      const Span* innermost = &step;
      std::int64_t until = in.end;
      for (const Span* phase : phases_) {
        if (phase->begin >= until) {
          break;
        }
        if (phase->begin > in.begin) {
          until = phase->begin;
        } else if (phase->end > in.begin) {
          until = std::min(until, phase->end);
          innermost = phase;  // they are in order, the ones within later
        }
      }
      add({in.begin, until}, Share::other, innermost == &step ? "between operations" : innermost->name);
      in.begin = until;
    }
  }

  const JoinedTrace& trace_;
  const RankTrace& rank_;
  std::vector<const Span*> phases_;
  std::int64_t leaf_ = -1;
  std::vector<StepPiece> pieces_;
};

}  // namespace

std::vector<StepPiece> pieces_of(const JoinedTrace& trace, const RankTrace& rank, const Span& step) {
  return Division(trace, rank).of(step);
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
  for (const Span& span : line.spans) {
    if (line.number == 0 && span.kind == SpanKind::step) {
      for (StepPiece& piece : pieces_of(trace, rank, span)) {
        within.emplace(piece.leaf, std::move(piece));
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
