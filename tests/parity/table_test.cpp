// The table of layouts (layouts.h), each against one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "apps/check/layout_checks.h"
#include "core/session/session.h"
#include "tests/parity/layouts.h"
#include "tests/support/parity.h"

namespace orthant::table_test {
namespace {

using test::TableCell;
using test::TableLayout;

std::string cell_name(const testing::TestParamInfo<TableCell>& info) {
  return info.param.name();
}

void expect_parity(const TableCell& cell) {
  test::expect_parity(cell.overrides(), cell.layout.plugins(), {.ranks = cell.layout.ranks()});
}

class Cell : public testing::TestWithParam<TableCell> {};
TEST_P(Cell, EqualsOneRank) {
  expect_parity(GetParam());
}
INSTANTIATE_TEST_SUITE_P(LayoutTable, Cell, testing::ValuesIn(test::quick_cells()), cell_name);

// Every layout on up to eight ranks with two models, and on sixteen with one.
// Some hundred layouts a test: a process for each would take longer than the layouts. `part` of `parts`.
void expect_parity_of_all(int ranks, std::size_t models, std::size_t part = 0, std::size_t parts = 1) {
  const std::vector<TableCell> cells = test::full_cells(ranks, models);
  EXPECT_GT(cells.size(), 50u);
  for (std::size_t i = part; i < cells.size(); i += parts) {
    expect_parity(cells[i]);
  }
}
TEST(SlowTable, TwoRanks) {
  expect_parity_of_all(2, 4);
}
TEST(SlowTable, FourRanks) {
  expect_parity_of_all(4, 2);
}

class SlowTablePart : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::size_t parts = 8;
};
TEST_P(SlowTablePart, EightRanks) {
  expect_parity_of_all(8, 2, GetParam(), parts);
}
TEST_P(SlowTablePart, SixteenRanks) {
  expect_parity_of_all(16, 1, GetParam(), parts);
}
INSTANTIATE_TEST_SUITE_P(LayoutTable, SlowTablePart, testing::Range(std::size_t{0}, std::size_t{8}));

// --- a sample of the table, asked for more

std::vector<TableCell> every(std::size_t nth) {
  std::vector<TableCell> cells;
  for (std::size_t i = 0; i < test::quick_cells().size(); i += nth) {
    cells.push_back(test::quick_cells()[i]);
  }
  return cells;
}

// Every variant of an axis alone on two ranks, and the layout of most axes.
std::vector<TableCell> alone_and_all() {
  std::vector<TableCell> cells = {test::quick_cells().front()};
  std::set<std::string> seen;
  for (const TableCell& cell : test::quick_cells()) {
    if (cell.layout.axes.size() == 1 && cell.layout.ranks() == 2 && seen.insert(cell.layout.name()).second) {
      cells.push_back(cell);
    }
  }
  return cells;
}

void expect_ok(const Finding& finding) {
  EXPECT_EQ(finding.outcome, Outcome::ok) << finding.detail;
}

class Sample : public testing::TestWithParam<TableCell> {};
TEST_P(Sample, RepeatsInEveryBit) {
  expect_ok(check_repeats(GetParam().config()));
}
TEST_P(Sample, CallsCollectivesInOneOrder) {
  expect_ok(check_order(GetParam().config()));
}
INSTANTIATE_TEST_SUITE_P(LayoutTable, Sample, testing::ValuesIn(every(12)), cell_name);

class GuardedCell : public testing::TestWithParam<TableCell> {};
TEST_P(GuardedCell, TouchesMemoryInOperationsOnly) {
  expect_ok(check_guarded(GetParam().config()));
}
INSTANTIATE_TEST_SUITE_P(LayoutTable, GuardedCell, testing::ValuesIn(alone_and_all()), cell_name);

// --- what the table holds

TEST(LayoutTable, HoldsWhatItPromises) {
  std::set<std::string> layouts, axes;
  std::size_t largest = 0;
  for (const TableCell& cell : test::quick_cells()) {
    layouts.insert(cell.layout.name());
    largest = std::max(largest, cell.layout.axes.size());
    for (const test::AxisVariant& axis : cell.layout.axes) {
      axes.insert(axis.axis);
    }
  }
  EXPECT_GE(layouts.size(), 120u);
  EXPECT_EQ(axes, (std::set<std::string>{"data", "expert", "pipeline", "sequence", "tensor"}));
  EXPECT_GE(largest, 4u);
}

// Nothing is left out silently: a layout works, or is refused before anything starts, with the reason that is expected.
void expect_right_refusals(int least, int most) {
  std::set<std::string> reasons;
  std::size_t turn = 0;
  for (const TableLayout& layout : test::all_layouts()) {
    if (layout.ranks() < least || layout.ranks() > most) {
      continue;
    }
    const TableCell cell{layout, test::table_models()[turn++ % test::table_models().size()]};
    const std::optional<std::string> expected = refusal_of(cell);
    std::string said;
    try {
      check_layout(cell.config());
    } catch (const ConfigError& error) {
      said = error.what();
    }
    if (expected.has_value()) {
      EXPECT_THAT(said, testing::HasSubstr(*expected)) << cell.name();
      reasons.insert(*expected);
    } else {
      EXPECT_EQ(said, "") << cell.name();
    }
  }
  EXPECT_FALSE(reasons.empty());
}

TEST(LayoutTable, WhatIsImpossibleIsRefusedWithItsReason) {
  expect_right_refusals(2, 8);
}
TEST(SlowTable, WhatIsImpossibleOnSixteenRanksIsRefusedWithItsReason) {
  expect_right_refusals(16, 16);
}

}  // namespace
}  // namespace orthant::table_test
