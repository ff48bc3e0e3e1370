// Traces made by hand: clocks, who came last, and how the time of a step is divided.
#include "core/trace/join.h"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"
#include "tests/trace/spans.h"

namespace orthant::trace_test::join_test {
namespace {

constexpr SpanFacts first_step{.step = 1};

const Span step = span("step", SpanKind::step, 0, 100, first_step);

double ns(double seconds) {
  return std::round(seconds * 1e9);
}

TEST(Join, TheTimeOfACollectiveIsWaitingForWhoCameLastAndThenMoving) {
  const TraceSummary summary = summarise(
      join({rank_trace(0, {step, span("gemm", SpanKind::compute, 10, 20), call("all_reduce w", 5, 20, 60)}),
            rank_trace(1, {step, span("gemm", SpanKind::compute, 10, 45), call("all_reduce w", 5, 45, 61)})}));
  expect_sums(summary);
  const RankSummary& early = of_rank(summary, 0);
  EXPECT_EQ(ns(early.waiting), 25);
  EXPECT_EQ(ns(early.waiting_for.at(1)), 25);
  EXPECT_EQ(ns(early.exposed), 15);
  EXPECT_EQ(ns(early.compute), 10);
  EXPECT_EQ(ns(early.other), 50);
  const RankSummary& late = of_rank(summary, 1);
  EXPECT_EQ(ns(late.waiting), 0);
  EXPECT_EQ(ns(late.exposed), 16);
  EXPECT_EQ(summary.late_rank, 1);
  EXPECT_NE(summary.why.find("'gemm' takes"), std::string::npos) << summary.why;
}

TEST(Join, CallsOfGroupsApartAreNotTheSameCall) {
  const auto in_group = [](std::int64_t first, std::int64_t begin) {
    return span("all_reduce w", SpanKind::collective, begin, 90, {.group = 2, .first = first, .sequence = 1});
  };
  const TraceSummary summary =
      summarise(join({rank_trace(0, {step, in_group(0, 10)}), rank_trace(1, {step, in_group(0, 30)}),
                      rank_trace(2, {step, in_group(2, 70)}), rank_trace(3, {step, in_group(2, 75)})}));
  EXPECT_EQ(ns(of_rank(summary, 0).waiting_for.at(1)), 20);
  EXPECT_EQ(ns(of_rank(summary, 2).waiting_for.at(3)), 5);
}

TEST(Join, AWaitForARankOfAnotherStageIsABubble) {
  const auto message = [](const char* name, std::int64_t begin, std::int64_t end) {
    return span(name, SpanKind::collective, begin, end, {.group = 1, .first = 0, .sequence = 0, .from = 0, .to = 1});
  };
  const TraceSummary summary = summarise(join(
      {rank_trace(0, {step}, {message("send x", 40, 50)}), rank_trace(1, {step, message("recv x", 5, 52)}, {}, 1)}));
  expect_sums(summary);
  EXPECT_EQ(ns(of_rank(summary, 1).bubble), 35);
  EXPECT_EQ(ns(of_rank(summary, 1).bubble_for.at(0)), 35);
  EXPECT_EQ(ns(of_rank(summary, 1).exposed), 12);
  EXPECT_EQ(ns(of_rank(summary, 0).overlapped), 10);
}

TEST(Join, AWaitForAnotherStreamIsWhatThatStreamDoes) {
  const std::vector<Span> side = {call("all_reduce w", 1, 10, 50), span("adamw", SpanKind::compute, 50, 60)};
  const TraceSummary summary = summarise(join(
      {rank_trace(0,
                  {step, span("gemm", SpanKind::compute, 0, 30), span("wait", SpanKind::wait, 35, 70, {.of_track = 1})},
                  side),
       rank_trace(1, {step}, {call("all_reduce w", 1, 40, 50)})}));
  expect_sums(summary);
  const RankSummary& rank = of_rank(summary, 0);
  EXPECT_EQ(ns(rank.waiting_for.at(1)), 5);
  EXPECT_EQ(ns(rank.exposed), 10);
  EXPECT_EQ(ns(rank.operations.at("adamw")), 10);
  EXPECT_EQ(ns(rank.others.at("waiting for stream 'side 1'")), 10);
  EXPECT_EQ(ns(rank.overlapped), 0) << "its bytes moved while the main stream waited";
}

TEST(Join, WhatNoOperationCoversBelongsToTheInnermostPhase) {
  const TraceSummary summary = summarise(
      join({rank_trace(0, {step, span("forward", SpanKind::phase, 10, 60), span("data", SpanKind::phase, 20, 30),
                           span("gemm", SpanKind::compute, 25, 28), span("upload", SpanKind::transfer, 70, 75)})}));
  expect_sums(summary);
  const auto& others = of_rank(summary, 0).others;
  EXPECT_EQ(ns(others.at("data")), 7);
  EXPECT_EQ(ns(others.at("forward")), 40);
  EXPECT_EQ(ns(others.at("between operations")), 45);
  EXPECT_EQ(ns(others.at("transfers")), 5);
  EXPECT_EQ(summary.late_rank, std::nullopt);
}

TEST(Join, MoreRowsOfExpertsAreTheReasonWhereTheyAre) {
  const auto experts = [](std::int64_t rows, std::int64_t end) {
    return span("grouped_gemm", SpanKind::compute, 0, end, {.rows = rows});
  };
  const TraceSummary summary =
      summarise(join({rank_trace(0, {step, experts(100, 20), call("all_to_all e", 0, 20, 85)}),
                      rank_trace(1, {step, experts(400, 80), call("all_to_all e", 0, 80, 85)})}));
  EXPECT_EQ(summary.late_rank, 1);
  EXPECT_NE(summary.why.find("400 rows"), std::string::npos) << summary.why;
  EXPECT_NE(summary.why.find("moe.aux_loss"), std::string::npos) << summary.why;
}

TEST(Join, BarriersPutMachinesOnOneClockAndSayHowWell) {
  RankTrace here = rank_trace(0, {step, call("all_reduce w", 0, 20, 60)});
  RankTrace there =
      rank_trace(1, {span("step", SpanKind::step, 1000, 1100, first_step), call("all_reduce w", 0, 1040, 1060)});
  there.machine = "there";
  // In true time: both in the first barrier from 10 to 14, and in the second from 16 to 18.
  here.barriers = {{10, 14}, {16, 18}};
  there.barriers = {{1010, 1014}, {1016, 1018}};
  const JoinedTrace joined = join({here, there});
  EXPECT_EQ(ns(joined.clock_error), 2);
  EXPECT_EQ(joined.ranks[1].lines[0].spans[0].begin, 0);
  EXPECT_EQ(ns(of_rank(summarise(joined), 0).waiting_for.at(1)), 20);
  there.barriers.pop_back();
  EXPECT_NE(test::error_of([&] { join({here, there}); }).find("same barriers"), std::string::npos);
  there.barriers = {{1010, 1014}, {1026, 1028}};
  EXPECT_NE(test::error_of([&] { join({here, there}); }).find("contradict"), std::string::npos);
}

// Many short steps: whatever looked at all spans for each of them, or for each wait, would take minutes.
TEST(Join, ManyStepsTakeTimeInProportion) {
  constexpr std::int64_t steps = 8000, operations = 12;
  const auto recorded = [&](int rank) {
    std::vector<Span> main, side;
    std::int64_t now = 0;
    for (std::int64_t s = 0; s < steps; ++s) {
      const std::int64_t begin = now;
      const std::size_t at = main.size();
      main.push_back(span("step", SpanKind::step, begin, 0, {.step = s + 1}));
      for (std::int64_t i = 0; i < operations; ++i, now += 20) {
        main.push_back(span("forward", SpanKind::phase, now, now + 18));
        main.push_back(span("gemm", SpanKind::compute, now + 1, now + 6));
        side.push_back(call("all_reduce w", s * operations + i, now + 2 + rank, now + 15));
        main.push_back(span("wait", SpanKind::wait, now + 8, now + 16, {.of_track = 1}));
      }
      main[at].end = now;
    }
    return rank_trace(rank, main, side);
  };
  const std::clock_t begin = std::clock();  // of this process: others may have the machine
  const JoinedTrace joined = join({recorded(0), recorded(1)});
  const TraceSummary summary = summarise(joined);
  const std::string file = to_chrome_json(joined);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 30) << "of " << 2 * steps * (1 + 4 * operations) << " spans";
  expect_sums(summary);
  const RankSummary& rank = of_rank(summary, 0);
  EXPECT_EQ(ns(rank.compute), 5 * operations);
  EXPECT_EQ(ns(rank.waiting), 0) << "the other rank has come when it begins to wait";
  EXPECT_EQ(ns(rank.exposed), 7 * operations);
  EXPECT_EQ(ns(rank.others.at("forward")), 5 * operations);
  EXPECT_EQ(ns(rank.overlapped), 5 * operations);
  EXPECT_GT(file.size(), 1000000U);
}

TEST(Join, APartIsReadAsItWasWritten) {
  RankTrace trace =
      rank_trace(3, {step, span("odd \"name\"\n", SpanKind::host, 1234567, 1234999), call("all_to_all e", 7, 1, 999)},
                 {span("wait", SpanKind::wait, 5, 6, {.of_track = 0})}, 2);
  trace.barriers = {{1, 2}};
  trace.groups[4] = {"data", {0, 3}};
  const launch_test::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / trace_part_name(3);
  std::ofstream(file) << to_part(trace);
  const RankTrace read = read_part(file);
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.stage, 2);
  EXPECT_EQ(read.machine, "here");
  EXPECT_EQ(read.barriers, trace.barriers);
  EXPECT_EQ(read.groups.at(4).members, (std::vector<int>{0, 3}));
  ASSERT_EQ(read.lines.size(), 2u);
  for (std::size_t line = 0; line < 2; ++line) {
    ASSERT_EQ(read.lines[line].spans.size(), trace.lines[line].spans.size());
    for (std::size_t i = 0; i < read.lines[line].spans.size(); ++i) {
      const Span &a = read.lines[line].spans[i], &b = trace.lines[line].spans[i];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.kind, b.kind);
      EXPECT_EQ(a.begin, b.begin);
      EXPECT_EQ(a.end, b.end);
      EXPECT_EQ(a.facts.sequence, b.facts.sequence);
      EXPECT_EQ(a.facts.of_track, b.facts.of_track);
    }
  }
  std::ofstream(file) << "{\"traceEvents\": []}";
  EXPECT_NE(test::error_of([&] { read_part(file); }).find("is not a rank's part"), std::string::npos);
}

}  // namespace
}  // namespace orthant::trace_test::join_test
