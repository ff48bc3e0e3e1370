// What `orthant bench machine` makes of measurements: it finds the machine that they come from again, and refuses what
// no machine can do.
#include "bench/machine/machine_of.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <set>

#include "apps/cost/machine_file.h"
#include "bench/machine/measure_rank.h"
#include "parallel/local/thread_world.h"
#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::cost_test {
namespace {

using launch_test::TemporaryFolder;
using machine::Measured;
using test::error_of;
using testing::HasSubstr;

// Two ranks on two cores: 100 GFLOP/s and 10 GB/s outside of a cache of 2 MB, 40 GB/s inside; messages of 5 us and
// 4 GB/s, of which a sum gets half and an exchange 0.8; a product has a price of 5 us; together the ranks do 1.8 times
// the work of one.
constexpr double toy_flop_rate = 100e9, toy_bandwidth = 10e9, toy_cache = 2e6, toy_cached = 4, toy_latency = 5e-6,
                 toy_price = 5e-6, toy_sums = 0.5, toy_exchanges = 0.8, toy_link = 4e9;

double memory_seconds(double bytes) {
  const double inside = std::min(1.0, toy_cache / bytes);
  return bytes / toy_bandwidth * (inside / toy_cached + 1 - inside);
}

Measured measured_on_two_cores() {
  Measured measured;
  measured.ranks = measured.cores = 2;
  measured.memory_bytes = 16e9;
  measured.together = {1, 1.8};
  measured.launch_seconds = 1e-6;
  measured.expert_seconds = 3e-6;
  measured.step_seconds = 2e-3;
  for (const bool half : {false, true}) {
    for (const std::int64_t n : {64, 256, 1024}) {
      const double flops = 2.0 * static_cast<double>(n * n * n),
                   bytes = (half ? 2.0 : 4.0) * 3 * static_cast<double>(n * n);
      measured.products.push_back({half, n, n, n, toy_price + flops / toy_flop_rate + memory_seconds(bytes)});
    }
  }
  for (const double bytes : {6e4, 5e5, 4e6, 6.4e7}) {
    measured.memory.push_back({"copy", bytes, memory_seconds(bytes)});
  }
  for (const char* name : {"norm", "add", "activation"}) {
    measured.memory.push_back({name, 8e6, memory_seconds(8e6)});
  }
  measured.memory.push_back({"adamw", 1e8, memory_seconds(1e8)});
  measured.attention_flops = 1e9;
  measured.attention_seconds = 1e9 / (0.25 * toy_flop_rate);
  // Both cores at once: each at 0.9 of its rate. Two ranks: a ring is one round each way.
  for (const double bytes : {1e3, 1e5, 1e6, 1e7}) {
    const double half = toy_latency + bytes / 2 / toy_link, sum = toy_latency + bytes / 2 / (toy_link * toy_sums),
                 exchange = toy_latency + bytes / 2 / (toy_link * toy_exchanges);
    measured.links.push_back({"all_reduce", bytes, 2 * sum / 0.9});
    measured.links.push_back({"all_gather", bytes, half / 0.9});
    measured.links.push_back({"all_to_all", bytes, exchange / 0.9});
    measured.links.push_back({"send", bytes, (toy_latency + bytes / toy_link) / 0.9});
  }
  return measured;
}

TEST(MachineOf, FindsTheMachineBehindTheMeasurements) {
  const cost::Machine found = machine::machine_of(measured_on_two_cores());
  EXPECT_NEAR(found.peak[0] * found.factors.products / toy_flop_rate, 1, 0.03);
  EXPECT_NEAR(found.memory_bandwidth / toy_bandwidth, 1, 0.03);
  EXPECT_NEAR(found.factors.memory, 1, 0.05);
  EXPECT_NEAR(found.cores.cached / toy_cached, 1, 0.1);
  EXPECT_NEAR(found.cores.cache / toy_cache, 1, 0.15);
  EXPECT_NEAR(found.cores.together, 0.9, 1e-9);
  EXPECT_EQ(found.cores.count, 2);
  EXPECT_NEAR(found.links.front().latency / toy_latency, 1, 0.05);
  EXPECT_NEAR(found.links.front().bandwidth * found.factors.links / toy_link, 1, 0.05);
  EXPECT_NEAR(found.links.front().sums / toy_sums, 1, 0.05);
  EXPECT_NEAR(found.links.front().exchanges / toy_exchanges, 1, 0.05);
  EXPECT_NEAR(found.factors.launch / toy_price, 1, 0.1);
  ASSERT_TRUE(found.practice);
  EXPECT_NEAR(found.practice->attention, 0.25, 0.02);
  EXPECT_NEAR(found.practice->step, 2e-3 * 0.9, 1e-6);
}

TEST(MachineOf, ItsFileIsReadAsItWasWritten) {
  const TemporaryFolder directory;
  const cost::Machine found = machine::machine_of(measured_on_two_cores());
  const std::string path = (directory.path() / "own.toml").string();
  std::ofstream(path) << machine::machine_toml(found, "# own\n");
  const cost::Machine read = cost::load_machine(path, cost::FactorFile{});
  const auto same = [](double a, double b) { EXPECT_NEAR(a / b, 1, 1e-3); };
  for (std::size_t i = 0; i < 2; ++i) {
    same(read.peak[i], found.peak[i]);
  }
  same(read.memory, found.memory);
  same(read.memory_bandwidth, found.memory_bandwidth);
  same(read.factors.products, found.factors.products);
  same(read.factors.memory, found.factors.memory);
  same(read.factors.links, found.factors.links);
  same(read.factors.network, found.factors.network);
  same(read.factors.launch, found.factors.launch);
  ASSERT_EQ(read.links.size(), 1U);
  same(read.links.front().bandwidth, found.links.front().bandwidth);
  same(read.links.front().latency, found.links.front().latency);
  same(read.links.front().sums, found.links.front().sums);
  same(read.links.front().exchanges, found.links.front().exchanges);
  ASSERT_TRUE(read.practice);
  same(read.practice->attention, found.practice->attention);
  same(read.practice->overlap, found.practice->overlap);
  same(read.practice->step, found.practice->step);
  EXPECT_EQ(read.cores.count, found.cores.count);
  same(read.cores.together, found.cores.together);
  same(read.cores.cache, found.cores.cache);
  same(read.cores.cached, found.cores.cached);
  same(read.cores.expert, 3e-6);
}

TEST(MachineOf, WhatIsMeasuredSurvivesItsText) {
  const Measured measured = measured_on_two_cores(), read = machine::from_json(machine::to_json(measured));
  EXPECT_EQ(machine::to_json(read), machine::to_json(measured));
  EXPECT_EQ(read.products.size(), measured.products.size());
  EXPECT_EQ(read.links.back().seconds, measured.links.back().seconds);
  EXPECT_THAT(error_of([] { machine::from_json("{}"); }), HasSubstr("cannot be read"));
}

TEST(MachineOf, AbsurdMeasurementsAreRefusedByName) {
  const auto refusal = [](auto spoil) {
    Measured measured = measured_on_two_cores();
    spoil(measured);
    // As it comes from another process: numbers that are none have become null on the way.
    return error_of([&] { machine::machine_of(machine::from_json(machine::to_json(measured))); });
  };
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal([](Measured& m) { m.products[1].seconds = 0; }),
              HasSubstr("the f32 product of 256 rows, 256 inner"));
  EXPECT_THAT(refusal([&](Measured& m) { m.products[4].seconds = nothing; }),
              HasSubstr("the bf16 product of 256 rows"));
  EXPECT_THAT(refusal([](Measured& m) { m.products[2].seconds = 1e-9; }), HasSubstr("which no machine reaches"));
  EXPECT_THAT(refusal([](Measured& m) { m.memory[0].seconds = -1; }), HasSubstr("copy, s is -1"));
  EXPECT_THAT(refusal([&](Measured& m) { m.memory.back().seconds = nothing; }), HasSubstr("adamw, s is nan"));
  EXPECT_THAT(refusal([](Measured& m) { m.memory.clear(); }), HasSubstr("no copy was measured"));
  EXPECT_THAT(refusal([](Measured& m) { m.attention_seconds = 0; }), HasSubstr("attention"));
  EXPECT_THAT(refusal([](Measured& m) { m.together[1] = 0; }), HasSubstr("products of 2 ranks at once"));
  EXPECT_THAT(refusal([](Measured& m) { m.together.pop_back(); }), HasSubstr("2 ranks, and 1 measurements"));
  EXPECT_THAT(refusal([](Measured& m) { m.links[0].seconds = 0; }), HasSubstr("all_reduce of 1000 bytes, s is 0"));
  EXPECT_THAT(refusal([](Measured& m) { m.links.clear(); }), HasSubstr("no link was measured"));
  EXPECT_THAT(refusal([](Measured& m) { m.step_seconds = 0; }), HasSubstr("a step of nearly no work"));
  EXPECT_THAT(refusal([](Measured& m) { m.launch_seconds = 0; }), HasSubstr("an operation on a few numbers"));
  EXPECT_THAT(refusal([](Measured& m) { m.expert_seconds = 0; }), HasSubstr("an expert more in a product"));
  EXPECT_THAT(refusal([](Measured& m) { m.memory_bytes = 0; }), HasSubstr("memory, bytes is 0"));
  EXPECT_EQ(refusal([](Measured&) {}), "no error");
}

// Two ranks that are threads here: all that is measured is there, and a machine that loads comes of it. No time is
// asserted.
TEST(MeasureRank, TwoRanksMeasureAMachine) {
  Measured measured;
  run_threads(2, [&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_cpu_device(1);
    Measured own = machine::measure_rank(communicator, *device, true);
    if (communicator.rank() == 0) {
      measured = std::move(own);
    }
  });
  measured.cores = 2;
  measured.memory_bytes = 1e9;
  EXPECT_THAT(error_of([&] { machine::check(measured); }),
              HasSubstr("a step of nearly no work"));  // not its own to tell
  measured.step_seconds = 1e-3;
  machine::check(measured);
  EXPECT_EQ(measured.ranks, 2);
  EXPECT_EQ(measured.together.size(), 2U);
  std::set<std::string> calls, memory;
  for (const machine::LinkTime& one : measured.links) {
    calls.insert(one.call);
  }
  for (const machine::MemoryTime& one : measured.memory) {
    memory.insert(one.name);
  }
  EXPECT_EQ(calls, (std::set<std::string>{"all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send"}));
  EXPECT_EQ(memory, (std::set<std::string>{"activation", "adamw", "add", "copy", "norm"}));
  const TemporaryFolder directory;
  const std::string path = (directory.path() / "own.toml").string();
  std::ofstream(path) << machine::machine_toml(machine::machine_of(measured), "");
  EXPECT_GT(cost::load_machine(path, cost::FactorFile{}).peak_of(cost::Precision::half), 0);
}

}  // namespace
}  // namespace orthant::cost_test
