#include "core/trace/division.h"

#include <algorithm>
#include <limits>

namespace orthant {

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

Division::Interval Division::Interval::with(std::int64_t from, std::int64_t to) const {
  return {std::max(begin, from), std::min(end, to)};
}

Division::Division(const JoinedTrace& trace, const RankTrace& rank) : trace_(trace), rank_(rank) {
  for (const RankTrace::Line& line : rank_.lines) {
    leaves_[line.number] = leaves_of(line);
    if (line.number != 0) {
      lines_[line.number] = &line;
    }
  }
  phases_ = innermost_phases(rank_.lines.front());
}

// Spans are in order, the one around the others first.
Division::Leaves Division::leaves_of(const RankTrace::Line& line) {
  Leaves leaves;
  std::int64_t covered = std::numeric_limits<std::int64_t>::min();
  for (std::size_t i = 0; i < line.spans.size(); ++i) {
    const Span& span = line.spans[i];
    if (span.kind != SpanKind::step && span.kind != SpanKind::phase && span.end > covered) {
      leaves.push_back(i);
      covered = span.end;
    }
  }
  return leaves;
}

std::vector<Division::PhasePart> Division::innermost_phases(const RankTrace::Line& line) {
  std::vector<PhasePart> parts;
  std::vector<const Span*> open;  // the innermost last
  std::int64_t at = 0;            // the innermost one is told up to here
  const auto tell_until = [&](std::int64_t time) {
    if (!open.empty() && at < time) {
      parts.push_back({{at, time}, open.back()});
    }
    at = std::max(at, time);
  };
  const auto close_until = [&](std::int64_t time) {
    while (!open.empty() && open.back()->end <= time) {
      tell_until(open.back()->end);
      open.pop_back();
    }
  };
  for (const Span& span : line.spans) {
    if (span.kind == SpanKind::phase) {
      close_until(span.begin);
      tell_until(span.begin);
      at = span.begin;
      open.push_back(&span);
    }
  }
  close_until(std::numeric_limits<std::int64_t>::max());
  return parts;
}

void Division::Pieces::add(Interval in, Share share, const std::string& what, std::int64_t late) {
  if (!in.empty()) {
    all.push_back({in.begin, in.end, share, what, late, leaf});
  }
}

template <class Work, class Rest>
void Division::for_each_leaf(const RankTrace::Line& line, Interval in, Work work, Rest rest) const {
  const Leaves& leaves = leaves_.at(line.number);
  auto next =
      std::partition_point(leaves.begin(), leaves.end(), [&](std::size_t i) { return line.spans[i].end <= in.begin; });
  std::int64_t at = in.begin;
  for (; next != leaves.end() && line.spans[*next].begin < in.end; ++next) {
    const Span& span = line.spans[*next];
    const Interval part = Interval{span.begin, span.end}.with(at, in.end);
    if (!part.empty()) {
      rest(Interval{at, part.begin});
      work(*next, part);
      at = part.end;
    }
  }
  rest(Interval{at, in.end});
}

std::vector<StepPiece> Division::of(const Span& step) const {
  Pieces pieces;
  const RankTrace::Line& main = rank_.lines.front();
  for_each_leaf(
      main, {step.begin, step.end},
      [&](std::size_t i, Interval part) {
        pieces.leaf = static_cast<std::int64_t>(i);
        divide(pieces, main.spans[i], part, 0);
        pieces.leaf = -1;
      },
      [&](Interval gap) { divide_gap(pieces, gap, step); });
  return std::move(pieces.all);
}

int Division::stage_of(std::int64_t rank) const {
  const auto found = std::lower_bound(trace_.ranks.begin(), trace_.ranks.end(), rank,
                                      [](const RankTrace& other, std::int64_t wanted) { return other.rank < wanted; });
  return found == trace_.ranks.end() || found->rank != rank ? rank_.stage : found->stage;
}

void Division::divide(Pieces& to, const Span& span, Interval in, int depth) const {
  switch (span.kind) {
    case SpanKind::step:
    case SpanKind::phase: break;
    case SpanKind::compute: return to.add(in, Share::compute, span.name);
    case SpanKind::transfer: return to.add(in, Share::other, "transfers");
    case SpanKind::host: return to.add(in, Share::other, span.name);
    case SpanKind::collective: {
      const std::int64_t met = span.facts.late < 0 ? in.begin : std::clamp(span.facts.met, in.begin, in.end);
      const bool bubble = span.facts.late >= 0 && stage_of(span.facts.late) != rank_.stage;
      to.add({in.begin, met}, bubble ? Share::bubble : Share::waiting, span.name, span.facts.late);
      return to.add({met, in.end}, Share::exposed, span.name);
    }
    case SpanKind::wait: return divide_wait(to, span, in, depth);
  }
}

// What the other stream does meanwhile.
void Division::divide_wait(Pieces& to, const Span& wait, Interval in, int depth) const {
  constexpr int deepest = 4;  // streams that wait for each other in turn
  const auto other = lines_.find(static_cast<int>(wait.facts.of_track));
  if (other == lines_.end() || depth == deepest) {
    return to.add(in, Share::other, "waiting for a stream");
  }
  const RankTrace::Line& line = *other->second;
  const std::string rest = "waiting for stream '" + line.name + "'";
  for_each_leaf(
      line, in, [&](std::size_t i, Interval part) { divide(to, line.spans[i], part, depth + 1); },
      [&](Interval gap) { to.add(gap, Share::other, rest); });
}

// No operation covers it: it is the host's, in the innermost phase.
void Division::divide_gap(Pieces& to, Interval in, const Span& step) const {
  constexpr const char* between = "between operations";
  auto next = std::partition_point(phases_.begin(), phases_.end(),
                                   [&](const PhasePart& part) { return part.time.end <= in.begin; });
  std::int64_t at = in.begin;
  for (; next != phases_.end() && next->time.begin < in.end; ++next) {
    const Interval part = next->time.with(at, in.end);
    to.add({at, part.begin}, Share::other, between);
    to.add(part, Share::other, next->phase == &step ? between : next->phase->name);
    at = part.end;
  }
  to.add({at, in.end}, Share::other, between);
}

}  // namespace orthant
