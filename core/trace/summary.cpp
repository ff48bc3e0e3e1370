#include "core/trace/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include <orthant/error.h>

#include "core/trace/division.h"
#include "core/trace/late_rank.h"

namespace orthant {
namespace {

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::vector<const Span*> steps_of(const RankTrace& rank) {
  std::vector<const Span*> steps;
  if (!rank.lines.empty()) {
    for (const Span& span : rank.lines.front().spans) {
      if (span.kind == SpanKind::step) {
        steps.push_back(&span);
      }
    }
  }
  return steps;
}

void add(RankSummary& to, const StepPiece& piece) {
  const double s = seconds(piece.end - piece.begin);
  switch (piece.share) {
    case Share::compute:
      to.compute += s;
      to.operations[piece.what] += s;
      return;
    case Share::exposed:
      to.exposed += s;
      to.collectives[piece.what] += s;
      return;
    case Share::waiting:
      to.waiting += s;
      to.waiting_for[static_cast<int>(piece.late)] += s;
      return;
    case Share::bubble:
      to.bubble += s;
      to.bubble_for[static_cast<int>(piece.late)] += s;
      return;
    case Share::other:
      to.other += s;
      to.others[piece.what] += s;
      return;
  }
}

// Calls work(part of [begin, end)) for the parts that lie in `spans`, which are in order and apart.
template <class Work>
void for_each_common(const std::vector<const Span*>& spans, std::int64_t begin, std::int64_t end, Work work) {
  auto next = std::partition_point(spans.begin(), spans.end(), [&](const Span* span) { return span->end <= begin; });
  for (; next != spans.end() && (*next)->begin < end; ++next) {
    work(std::max(begin, (*next)->begin), std::min(end, (*next)->end));
  }
}

// Of the main line, by the stream that is waited for.
std::map<std::int64_t, std::vector<const Span*>> waits_of(const RankTrace& rank) {
  std::map<std::int64_t, std::vector<const Span*>> waits;
  for (const Span& span : rank.lines.front().spans) {
    std::vector<const Span*>& known = waits[span.facts.of_track];
    if (span.kind == SpanKind::wait && (known.empty() || span.end > known.back()->end)) {
      known.push_back(&span);
    }
  }
  return waits;
}

// What the collectives of other streams moved in `steps`, without what the main stream waited for meanwhile.
std::int64_t overlapped_in(const RankTrace& rank, const std::vector<const Span*>& steps) {
  const std::map<std::int64_t, std::vector<const Span*>> waits = waits_of(rank);
  std::int64_t sum = 0;
  for (const RankTrace::Line& line : rank.lines) {
    const auto waited = waits.find(line.number);
    for (const Span& span : line.spans) {
      if (line.number == 0 || span.kind != SpanKind::collective) {
        continue;
      }
      const std::int64_t met = span.facts.late < 0 ? span.begin : std::clamp(span.facts.met, span.begin, span.end);
      for_each_common(steps, met, span.end, [&](std::int64_t begin, std::int64_t end) {
        sum += end - begin;
        if (waited != waits.end()) {
          for_each_common(waited->second, begin, end, [&](std::int64_t from, std::int64_t to) { sum -= to - from; });
        }
      });
    }
  }
  return sum;
}

std::int64_t expert_rows_in(const RankTrace& rank, const Span& step) {
  std::int64_t rows = 0;
  for (const RankTrace::Line& line : rank.lines) {
    for (const Span& span : beginning_in(line, step.begin, step.end)) {
      rows += is_expert_product(span.name) && span.facts.rows > 0 ? span.facts.rows : 0;
    }
  }
  return rows;
}

void divide(RankSummary& rank, double by) {
  for (double* value : {&rank.seconds, &rank.compute, &rank.exposed, &rank.waiting, &rank.bubble, &rank.other,
                        &rank.overlapped, &rank.expert_rows}) {
    *value /= by;
  }
  for (std::map<std::string, double>* parts : {&rank.operations, &rank.collectives, &rank.others}) {
    for (auto& [name, value] : *parts) {
      value /= by;
    }
  }
  for (std::map<int, double>* parts : {&rank.waiting_for, &rank.bubble_for}) {
    for (auto& [other, value] : *parts) {
      value /= by;
    }
  }
}

}  // namespace

TraceSummary summarise(const JoinedTrace& trace) {
  TraceSummary summary{.clock_error = trace.clock_error};
  std::vector<double> longest;
  summary.first = std::numeric_limits<std::int64_t>::max();
  for (const RankTrace& rank : trace.ranks) {
    RankSummary own{.rank = rank.rank};
    const std::vector<const Span*> steps = steps_of(rank);
    require(!steps.empty(), "the trace of rank {} has no step", rank.rank);
    longest.resize(std::max(longest.size(), steps.size()));
    const Division division(trace, rank);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Span& step = *steps[i];
      summary.first = std::min(summary.first, step.facts.step);
      summary.last = std::max(summary.last, step.facts.step);
      own.seconds += seconds(step.end - step.begin);
      longest[i] = std::max(longest[i], seconds(step.end - step.begin));
      for (const StepPiece& piece : division.of(step)) {
        add(own, piece);
      }
      own.expert_rows += static_cast<double>(expert_rows_in(rank, step));
    }
    own.overlapped = seconds(overlapped_in(rank, steps));
    divide(own, static_cast<double>(steps.size()));
    summary.ranks.push_back(std::move(own));
  }
  std::nth_element(longest.begin(), longest.begin() + static_cast<std::ptrdiff_t>(longest.size() / 2), longest.end());
  summary.step_seconds = longest[longest.size() / 2];
  find_late_rank(summary);
  return summary;
}

std::string to_json(const TraceSummary& summary) {
  using Json = nlohmann::ordered_json;
  const auto by_rank = [](const std::map<int, double>& parts) {
    Json json = Json::object();
    for (const auto& [rank, value] : parts) {
      json[std::to_string(rank)] = value;
    }
    return json;
  };
  Json json;
  json["steps"] = {summary.first, summary.last};
  json["step_seconds"] = summary.step_seconds;
  json["clock_error_seconds"] = summary.clock_error;
  json["ranks"] = Json::array();
  for (const RankSummary& rank : summary.ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"seconds", rank.seconds},
                             {"compute", rank.compute},
                             {"exposed", rank.exposed},
                             {"overlapped", rank.overlapped},
                             {"waiting", rank.waiting},
                             {"waiting_for", by_rank(rank.waiting_for)},
                             {"bubble", rank.bubble},
                             {"bubble_for", by_rank(rank.bubble_for)},
                             {"other", rank.other},
                             {"operations", rank.operations},
                             {"collectives", rank.collectives},
                             {"others", rank.others},
                             {"expert_rows", rank.expert_rows}});
  }
  json["late_rank"] = summary.late_rank.has_value() ? Json(*summary.late_rank) : Json(nullptr);
  json["why"] = summary.why;
  return json.dump(2) + "\n";
}

std::string text_of(const TraceSummary& summary) {
  std::string text = fmt::format("where the time of steps {} to {} went, in ms a step ({:.2f} ms):\n", summary.first,
                                 summary.last, 1e3 * summary.step_seconds);
  text += fmt::format("  {:<6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11}\n", "rank", "compute", "exposed", "waiting",
                      "bubble", "other", "overlapped");
  for (const RankSummary& rank : summary.ranks) {
    text +=
        fmt::format("  {:<6} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>11.2f}\n", rank.rank, 1e3 * rank.compute,
                    1e3 * rank.exposed, 1e3 * rank.waiting, 1e3 * rank.bubble, 1e3 * rank.other, 1e3 * rank.overlapped);
  }
  return text + "  " + summary.why + "\n";
}

}  // namespace orthant
