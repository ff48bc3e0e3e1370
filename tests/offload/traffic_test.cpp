// What an offload moves and holds, to the byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/dry_run/planning.h"
#include "tests/support/parity.h"

namespace orthant::traffic_test {
namespace {

using test::experiment;
using test::Overrides;

struct Moved {
  double to_host, to_device, written, read;
};

// Elements of one rank's parameters.
struct Sizes {
  double all = 0, head = 0;
};

struct Measured {
  Moved moved;  // in a step
  Sizes elements;
  MemoryUse device, host;  // between two steps; the device's peak is that of a step
};

Measured measure(const Overrides& overrides, const std::string& keys) {
  Overrides all = test::joined({"model.layers=6", "optimizer.clip_grad_norm=1.0"}, overrides);
  const std::string table =
      keys.empty() ? "" : fmt::format("[plugins.offload]\ndirectory = \"{}\"\n{}", testing::TempDir(), keys);
  test::OneRank rank(experiment(all, table));
  Measured found{};
  for (int step = 0; step < 3; ++step) {
    rank->stream().device().reset_peak();
    const StepReport report = rank->trainer().step(step);
    rank->stream().synchronize();
    if (step == 2 && !keys.empty()) {
      const auto value = [&](const char* key) { return report.metrics.at(fmt::format("offload.{}_bytes", key)); };
      found.moved = {value("to_host"), value("to_device"), value("written"), value("read")};
    }
  }
  found.device = rank->stream().device().memory();
  found.host = rank->stream().device().host_memory();
  for (const auto& group : rank->trainer().parameters().groups()) {
    found.elements.all += static_cast<double>(group->elements);
    found.elements.head += group->name == "head" ? static_cast<double>(group->elements) : 0;
  }
  return found;
}

void expect_moved(const Measured& run, const Moved& expected) {
  EXPECT_EQ(run.moved.to_host, expected.to_host);
  EXPECT_EQ(run.moved.to_device, expected.to_device);
  EXPECT_EQ(run.moved.written, expected.written);
  EXPECT_EQ(run.moved.read, expected.read);
}

const Overrides bf16 = {R"(run.dtype="bf16")"};

// ZeRO-Offload: 4 bytes of gradient down (ours are f32), 2 of weights up.
TEST(Traffic, StatesInTheHostsMemory) {
  const Measured a = measure(bf16, "states = \"host\"\n");
  expect_moved(a, {4 * a.elements.all, 2 * a.elements.all, 0, 0});
  const Measured b = measure({}, "states = \"host\"\n");
  expect_moved(b, {4 * b.elements.all, 4 * b.elements.all, 0, 0});
}

// Master weights and two moments, read and written once.
TEST(Traffic, StatesOnDisk) {
  const Measured a = measure(bf16, "states = \"nvme\"\n");
  expect_moved(a, {4 * a.elements.all, 2 * a.elements.all, 12 * a.elements.all, 12 * a.elements.all});
}

// Weights come up for each pass; the head's backward follows its forward.
TEST(Traffic, Weights) {
  const Measured a = measure(bf16, "states = \"host\"\nweights = \"host\"\n");
  const double up = 2 * (2 * a.elements.all - a.elements.head);
  expect_moved(a, {4 * a.elements.all, up, 0, 0});
  const Measured b = measure(bf16, "states = \"host\"\nweights = \"nvme\"\n");
  // The update reads them too, so that a step that is refused leaves what was there.
  expect_moved(b, {4 * b.elements.all, up, 2 * b.elements.all, up + 2 * b.elements.all});
}

TEST(Traffic, Gradients) {
  const Measured a = measure(bf16, "states = \"host\"\ngradients = \"host\"\n");
  expect_moved(a, {4 * a.elements.all, 2 * a.elements.all, 0, 0});
  // Of four micro-batches each adds to what came up again.
  const Measured b = measure(test::joined(bf16, {"batch.micro_batch=2"}), "states = \"host\"\ngradients = \"host\"\n");
  expect_moved(b, {4 * 4 * b.elements.all, (3 * 4 + 2) * b.elements.all, 0, 0});
}

TEST(Traffic, UpdatesInTheBackwardPassMoveNoMore) {
  const Overrides end = test::joined(bf16, {"optimizer.clip_grad_norm=0"});
  const Overrides early = test::joined(end, {"optimizer.in_backward=true"});
  for (const char* place : {"host", "nvme"}) {
    for (const char* keys : {"states = \"{0}\"\n", "states = \"{0}\"\ngradients = \"{0}\"\nweights = \"{0}\"\n"}) {
      const std::string text = fmt::format(fmt::runtime(keys), place);
      SCOPED_TRACE(text);
      expect_moved(measure(early, text), measure(end, text).moved);
    }
  }
}

// What is tried moves nothing twice: where gradients stay on the device they come down once more when it is made again.
TEST(Traffic, SpeculativeClipping) {
  const std::string tried = "states = \"host\"\nclip = \"speculative\"\n";
  const Overrides never = test::joined(bf16, {"optimizer.clip_grad_norm=1e9"});
  const Measured a = measure(never, tried);
  expect_moved(a, {4 * a.elements.all, 2 * a.elements.all, 0, 0});
  EXPECT_NEAR(static_cast<double>(a.host.current_bytes), (2 * 12 + 2) * a.elements.all, 64);
  const Overrides always = test::joined(bf16, {"optimizer.clip_grad_norm=1e-6"});
  const Measured b = measure(always, tried);
  expect_moved(b, {8 * b.elements.all, 2 * b.elements.all, 0, 0});
  const Measured c = measure(always, tried + "gradients = \"host\"\n");
  expect_moved(c, {4 * c.elements.all, 2 * c.elements.all, 0, 0});
}

TEST(Traffic, HostMemoryIsWhatIsThere) {
  constexpr double factors = 8;                           // of the last update, if its thread still has them
  const Measured a = measure({}, "states = \"host\"\n");  // master, two moments
  EXPECT_NEAR(static_cast<double>(a.host.current_bytes), 12 * a.elements.all, factors);
  const Measured b = measure(bf16, "states = \"host\"\nweights = \"host\"\ngradients = \"host\"\n");
  EXPECT_NEAR(static_cast<double>(b.host.current_bytes), (12 + 2 + 4) * b.elements.all, factors);
}

// What `orthant plan` foretells, and the worst that it does.
TEST(Traffic, ThePlanKnowsTheHostsMemoryAndTheDisk) {
  for (const char* place : {"host", "nvme"}) {
    SCOPED_TRACE(place);
    const Config config = experiment(
        {"model.layers=6"},
        fmt::format("[plugins.offload]\ndirectory = \"{1}\"\nstates = \"{0}\"\ngradients = \"{0}\"\nweights = \"{0}\"\n"
                    "activations = \"{0}\"\n",
                    place, testing::TempDir()));
    const MemoryPlan balanced = plan_rank(config, 0).memory;
    const MemoryPlan worst = plan_rank(config, 0, 0, {.load = Load::worst}).memory;
    test::OneRank rank(config);
    StepReport report;
    for (int step = 0; step < 3; ++step) {
      report = rank->trainer().step(step);
    }
    rank->stream().synchronize();
    const double host = static_cast<double>(rank->stream().device().host_memory().peak_bytes);
    EXPECT_EQ(report.metrics.at("offload.disk_bytes"), static_cast<double>(balanced.disk));
    EXPECT_EQ(std::string(place) == "nvme", balanced.disk > 0);
    EXPECT_LE(host, static_cast<double>(worst.host_peak));
    EXPECT_GE(host, 0.9 * static_cast<double>(balanced.host_peak));
    EXPECT_LE(rank->stream().device().memory().peak_bytes, worst.peak);
  }
}

TEST(Traffic, TheDeviceHoldsAFewLayers) {
  const Overrides deep = {"model.layers=24", "batch.sequences=1", "moe.experts=8"};
  const auto peak = [&](const std::string& keys) { return static_cast<double>(measure(deep, keys).device.peak_bytes); };
  const double plain = peak("");
  EXPECT_LT(peak("states = \"host\"\n"), 0.55 * plain);
  EXPECT_LT(peak("states = \"host\"\ngradients = \"host\"\n"), 0.35 * plain);
  EXPECT_LT(peak("states = \"host\"\ngradients = \"host\"\nweights = \"host\"\nactivations = \"host\"\n"), 0.2 * plain);
}

}  // namespace
}  // namespace orthant::traffic_test
