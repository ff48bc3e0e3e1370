// The layouts of own ranks, and the fit to them: a machine that is known is found again, by layouts that it has not
// seen.
#include "bench/machine/own_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "apps/cost/step_time.h"
#include "tests/support/error_of.h"

namespace orthant::cost_test {
namespace {

using machine::OwnLayout;
using machine::OwnMachines;
using machine::OwnRow;
using test::error_of;
using testing::HasSubstr;

OwnMachines two_machines() {
  cost::Machine one;
  one.name = one.generation = "own";
  one.peak = {150e9, 400e9, 0, 0};
  one.memory = 16e9;
  one.memory_bandwidth = 8e9;
  one.factors = {0.7, 0.9, 0.8, 0.8, 5e-6};
  one.cores = {.count = 2, .together = 0.9, .cache = 2e6, .expert = 1e-6, .cached = 3};
  one.practice = cost::Practice{0.4, 0.001, 0.3e-3, 0.1};
  one.links = {{"local", 0, 4e9, 2e-6, false}};
  cost::Machine other = one;
  other.links = {{"mpi", 0, 1e9, 100e-6, false}};
  return {{"local", one}, {"mpi", other}};
}

std::vector<OwnRow> rows_of(const OwnMachines& machines) {
  std::vector<OwnRow> rows;
  for (const OwnLayout& layout : machine::own_layouts()) {
    OwnRow row{layout, {1}};
    const double seconds = machine::predicted_seconds(row, machines);
    row.medians = {1.2 * seconds, seconds, 3 * seconds};  // the quickest counts
    rows.push_back(row);
  }
  return rows;
}

TEST(OwnMachine, LayoutsAreManyAndNoneIsInBothSets) {
  std::set<std::string> seen, held_out, communicators;
  std::set<int> ranks;
  for (const OwnLayout& layout : machine::own_layouts()) {
    (layout.seen ? seen : held_out).insert(machine::text_of(layout) + " " + layout.communicator);
    if (!layout.seen) {
      communicators.insert(layout.communicator);
      ranks.insert(layout.ranks());
    }
    EXPECT_NO_THROW(cost::check_layout(machine::shape_of(layout), machine::layout_of(layout)))
        << machine::text_of(layout);
  }
  EXPECT_GE(held_out.size(), 30U);
  EXPECT_EQ(communicators, (std::set<std::string>{"local", "mpi"}));
  EXPECT_EQ(ranks, (std::set<int>{1, 2, 4, 8}));
  for (const std::string& one : held_out) {
    EXPECT_EQ(seen.count(one), 0U) << one;
  }
}

TEST(OwnMachine, AMachineIsFoundAgainFromTheLayoutsThatAreSeen) {
  const OwnMachines truth = two_machines();
  const std::vector<OwnRow> rows = rows_of(truth);
  OwnMachines start = truth;
  for (auto& [name, machine] : start) {
    machine.factors.products *= 1.5;
    machine.factors.memory *= 0.8;
    machine.factors.links *= 1.5;
    machine.factors.launch *= 2;
    machine.practice->step *= 0.7;
    machine.links.front().latency *= 2;
    machine.links.front().sums *= 0.7;
  }
  EXPECT_GT(machine::errors_of(rows, start, false).mean, 5);
  const OwnMachines fit = machine::fitted(rows, start);
  EXPECT_LT(machine::errors_of(rows, fit, true).mean, 1);
  EXPECT_LT(machine::errors_of(rows, fit, false).mean, 1);
  EXPECT_LT(machine::errors_of(rows, fit, false).largest, 4);
}

// A held-out row, however wrong, moves nothing.
TEST(OwnMachine, TheFitDoesNotSeeWhatIsHeldOut) {
  std::vector<OwnRow> rows = rows_of(two_machines());
  const OwnMachines before = machine::fitted(rows, two_machines());
  for (OwnRow& row : rows) {
    if (!row.layout.seen) {
      row.medians = {17};
    }
  }
  const OwnMachines after = machine::fitted(rows, two_machines());
  for (const char* name : {"local", "mpi"}) {
    EXPECT_EQ(before.at(name).factors.products, after.at(name).factors.products);
    EXPECT_EQ(before.at(name).links.front().latency, after.at(name).links.front().latency);
  }
}

TEST(OwnMachine, ErrorsAreThoseOfTheirRows) {
  const OwnMachines machines = two_machines();
  std::vector<OwnRow> rows;
  double factor = 0.8;
  for (const OwnLayout& layout : machine::own_layouts()) {
    if (!layout.seen && rows.size() < 3) {
      OwnRow row{layout, {1}};
      row.medians = {machine::predicted_seconds(row, machines) / factor};
      rows.push_back(row);
      factor += 0.15;  // predicted / measured is 0.8, 0.95, 1.1
    }
  }
  const machine::OwnErrors errors = machine::errors_of(rows, machines, false);
  EXPECT_EQ(errors.rows, 3);
  EXPECT_NEAR(errors.mean, (20 + 5 + 10) / 3.0, 1e-9);
  EXPECT_NEAR(errors.median, 10, 1e-9);
  EXPECT_NEAR(errors.largest, 20, 1e-9);
  EXPECT_NEAR(errors.bias, (-20 - 5 + 10) / 3.0, 1e-9);
  EXPECT_EQ(machine::errors_of(rows, machines, true).rows, 0);
}

TEST(OwnMachine, RowsSurviveTheirText) {
  const std::vector<OwnRow> rows = rows_of(two_machines());
  const std::vector<OwnRow> read = machine::rows_from_json(machine::to_json(rows));
  ASSERT_EQ(read.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(machine::text_of(read[i].layout), machine::text_of(rows[i].layout));
    EXPECT_EQ(read[i].layout.seen, rows[i].layout.seen);
    EXPECT_EQ(read[i].medians, rows[i].medians);
  }
  EXPECT_THAT(
      error_of([] { machine::rows_from_json(R"([{"layout": "Z", "communicator": "local", "medians": [1]}])"); }),
      HasSubstr("no layout 'Z'"));
  EXPECT_THAT(
      error_of([] { machine::rows_from_json(R"([{"layout": "A", "communicator": "local", "medians": [0]}])"); }),
      HasSubstr("the measurement of the layout 'A' is 0 s"));
}

}  // namespace
}  // namespace orthant::cost_test
