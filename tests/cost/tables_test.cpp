// The tables of `orthant bench tables`: published formulas are met, the others say what the model says.
#include "bench/tables/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apps/cost/machine_file.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::cost_test {
namespace {

using tables::Table;
using test::error_of;
using testing::HasSubstr;

tables::Places places() {
  return {paths::source("bench/hindcast/data"), paths::source("configs/machines")};
}

double number(const std::string& text) {
  return std::stod(text);
}

TEST(Tables, EachIsMadeWithWholeRows) {
  for (const std::string& name : tables::names()) {
    const Table table = tables::make(name, places());
    EXPECT_EQ(table.name, name);
    EXPECT_FALSE(table.rows.empty()) << name;
    for (const auto& row : table.rows) {
      EXPECT_EQ(row.size(), table.columns.size()) << name;
      for (const std::string& cell : row) {
        EXPECT_TRUE(cell.find("nan") == std::string::npos && cell.find("inf") == std::string::npos) << name << cell;
      }
    }
    EXPECT_THAT(tables::markdown_of(table), HasSubstr("orthant bench tables " + name));
  }
  EXPECT_THAT(error_of([] { tables::make("nonsense", places()); }), HasSubstr("the tables are megatron, recompute"));
}

// 2 + 2 + 12 bytes a parameter, divided as the stage says; the published numbers are rounded.
TEST(Tables, ZeroIsTheFormula) {
  const Table table = tables::zero_table();
  EXPECT_EQ(table.rows.size(), 18U);
  for (const auto& row : table.rows) {
    const double parameters = number(row[0]), ranks = number(row[1]);
    const double formula[] = {2 + 2 + 12 / ranks, 2 + 14 / ranks, 16 / ranks};
    for (std::size_t stage = 0; stage < 3; ++stage) {
      const double published = number(row[2 + 2 * stage]), model = number(row[3 + 2 * stage]);
      EXPECT_NEAR(model / (formula[stage] * parameters), 1, 0.003) << row[0] << " " << row[1];
      EXPECT_NEAR(published / (formula[stage] * parameters), 1, 0.03) << row[0] << " " << row[1];
    }
  }
}

TEST(Tables, ActivationsAreThePapersFormulas) {
  for (const auto& row : tables::activation_table().rows) {
    for (std::size_t i = 1; i < row.size(); i += 2) {
      EXPECT_NEAR(number(row[i + 1]) / number(row[i]), 1, 0.005) << row[0];
    }
  }
}

TEST(Tables, PublishedRunsAreNear) {
  for (const auto& row : tables::megatron_table(places()).rows) {
    EXPECT_NEAR(number(row[6]) / number(row[5]), 1, 0.15) << row[0];
  }
  EXPECT_EQ(tables::megatron_table(places()).rows.size(), 10U);
  // 137 TFLOP/s of 1.7 B, 163 of 1 T: as the paper prints them.
  EXPECT_EQ(tables::megatron_table(places()).rows.front()[5], "137");
  EXPECT_EQ(tables::megatron_table(places()).rows.back()[5], "163");
  for (const auto& row : tables::recompute_table(places()).rows) {
    EXPECT_NEAR(number(row[7]), number(row[6]), 5) << row[0];  // per cent
  }
  for (const auto& row : tables::layer_table(places()).rows) {
    EXPECT_NEAR(number(row[6]) / number(row[5]), 1, 0.15) << row[0];
  }
}

// A ring of p ranks takes 2 (p - 1) messages of n / p bytes, two trees 2 (log2 p - 1) latencies and twice the bytes:
// the smallest power of two for which the first is no slower, by hand for one node.
TEST(Tables, TreesBeatRingsUpToTheMessageThatClosedFormsSay) {
  const cost::Machine machine = cost::load_machine(paths::source("configs/machines/h100.toml"));
  const double latency = machine.links.front().latency;
  const double rate = machine.links.front().bandwidth * machine.factors.links;
  for (const auto& row : tables::trees_table(places()).rows) {
    const double p = number(row[0]);
    if (p > machine.links.front().ranks) {
      continue;
    }
    double bytes = 1024;
    const auto ring = [&] { return 2 * (p - 1) * (latency + bytes / p / rate); };
    const auto trees = [&] { return 2 * (std::log2(p) - 1) * latency + 2 * (latency + bytes / rate); };
    while (ring() > trees()) {
      bytes *= 2;
    }
    const bool mega = row[1].find("MB") != std::string::npos;
    EXPECT_DOUBLE_EQ(number(row[1]) * (mega ? 1048576 : 1024), bytes) << p;
  }
}

// Inside a node an exchange costs less than across nodes, and once to each node less than each choice by itself.
TEST(Tables, ExchangesAcrossNodesCostMore) {
  for (const char* name : {"weak", "strong"}) {
    int compared = 0;
    for (const auto& row : tables::make(name, places()).rows) {
      if (row[7] != "-") {
        ++compared;
        EXPECT_LT(number(row[4]), number(row[7])) << row[0];
        EXPECT_LT(number(row[8]), number(row[5])) << row[0];
      }
    }
    EXPECT_EQ(compared, 7) << name;  // 64 to 4,096
  }
}

}  // namespace
}  // namespace orthant::cost_test
