// Offloads as a user runs them: a model larger than its memory, other places after a resume, what a killed run leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::program_test {
namespace {

using run_test::ProgramFolder;
using run_test::Result;
using run_test::with_set;
using testing::HasSubstr;

const std::string all_on_disk =
    "[plugins.offload]\nstates = \"nvme\"\ngradients = \"nvme\"\nweights = \"nvme\"\nactivations = \"nvme\"\n";

// 46M parameters: 737 MB of weights, gradients and states. RLIMIT_DATA counts what a process may write to, the
// stacks of threads too, which are 8 MiB each if nobody says less.
TEST(OffloadProgram, AModelOfFourTimesTheMemoryTrains) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory counts too";
#endif
  ProgramFolder folder;
  const auto train = [&](const std::string& limit, const std::string& more) {
    const std::string recipe = paths::source("configs/larger_than_memory.toml");
    return folder.command(
        {"bash", "-c",
         fmt::format("ulimit -s 1024 && ulimit -d {} && OMP_NUM_THREADS=1 exec {} train {} --set run.steps=2 --set "
                     "data.sequence_length=32 --set run.directory={} {}",
                     limit, paths::program(), recipe, folder.path("runs").string(), more)});
  };
  const Result run = train("188416", "");  // KiB: 184 MiB for all of the process
  EXPECT_EQ(run.code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("step 2/2"));
  const Result without = train("188416", "--set 'memory.limit=\"\"' --set plugins.offload.states=device");
  EXPECT_NE(without.code, 0) << without.output;
  const Result refused = train("unlimited", "--set plugins.offload.states=device");
  EXPECT_EQ(refused.code, 78) << refused.output << refused.error;
  EXPECT_THAT(refused.error, HasSubstr("[memory] limit"));
  EXPECT_THAT(refused.error, HasSubstr("plugins.offload.states = \"host\""));
}

// Whoever finds no memory: a tensor, a library, a thread of a parallel loop.
TEST(OffloadProgram, AProcessThatGetsNoMemorySaysSo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory counts too";
#endif
  ProgramFolder folder;
  for (int limit = 50'000; limit <= 125'000; limit += 25'000) {
    const Result run = folder.command(
        {"bash", "-c",
         fmt::format("ulimit -s 1024 && ulimit -d {} && OMP_NUM_THREADS=1 exec {} train {} --set run.steps=2 --set "
                     "data.sequence_length=32 --set run.directory={}",
                     limit, paths::program(), paths::source("configs/larger_than_memory.toml"),
                     folder.path("runs").string())});
    if (run.code != 0) {
      EXPECT_EQ(run.code, 1) << limit << ": " << run.error;
      EXPECT_THAT(run.error, testing::AnyOf(HasSubstr("memory"), HasSubstr("ulimit"))) << limit;
    }
  }
}

TEST(OffloadProgram, ARunResumesWithOtherPlaces) {
  ProgramFolder folder;
  folder.write("plain.toml", run_test::tiny_config({.data = 2}));
  folder.write("disk.toml", run_test::tiny_config({.data = 2}) + all_on_disk);
  const std::vector<std::string> steps = {"run.steps=8", "run.checkpoint_every=4"};
  const auto launch = [&](const char* config, const char* name, std::vector<std::string> more) {
    std::vector<std::string> words = {"launch", config, "--set", fmt::format("run.name={}", name)};
    words.insert(words.end(), more.begin(), more.end());
    const Result result = folder.orthant(with_set(words, steps));
    EXPECT_EQ(result.code, 0) << result.output << result.error;
  };
  launch("plain.toml", "r", {});
  launch("disk.toml", "disk", {});
  EXPECT_EQ(folder.losses("disk"), folder.losses("r"));
  launch("disk.toml", "on", {"--resume", folder.checkpoint(4).string()});
  launch("plain.toml", "off", {"--resume", folder.checkpoint(4, "disk").string()});
  const std::vector<double> all = folder.losses("r"), last(all.begin() + 4, all.end());
  EXPECT_EQ(folder.losses("on"), last);
  EXPECT_EQ(folder.losses("off"), last);
}

// Steps, validations, saves and a resume under limits that are what the plan promises.
TEST(OffloadProgram, WhatIsPromisedIsEnough) {
  const std::vector<std::vector<std::string>> all = {
      {"batch.micro_batch=1", R"(plugins.offload.states="host")", R"(plugins.offload.weights="host")",
       R"(plugins.offload.expert_weights="after_gate")", "plugins.offload.host_rows=8"},
      {"plugins.sequence.size=2", R"(memory.recompute="full")", R"(plugins.offload.states="host")",
       R"(plugins.offload.weights="host")"},
      {"plugins.sequence.size=2", "batch.micro_batch=1", "data.sequence_length=8"},
      {"plugins.data.size=2", R"(plugins.offload.states="nvme")", R"(plugins.offload.activations="host")"}};
  for (const std::vector<std::string>& settings : all) {
    SCOPED_TRACE(settings.back());
    ProgramFolder folder;
    folder.write("c.toml", run_test::tiny_config({}));
    const std::vector<std::string> values = [&] {
      std::vector<std::string> joined = {"run.steps=4", "run.checkpoint_every=2", "run.validate_every=2"};
      joined.insert(joined.end(), settings.begin(), settings.end());
      return joined;
    }();
    const Result plan = folder.orthant(with_set({"plan", "c.toml", "--json"}, values));
    ASSERT_EQ(plan.code, 0) << plan.error;
    std::int64_t device = 0, host = 0;
    const nlohmann::json planned = nlohmann::json::parse(plan.output);
    for (const nlohmann::json& ranks : planned.at("memory")) {
      device = std::max(device, ranks.at("worst_peak_bytes").get<std::int64_t>());
      host = std::max(host, ranks.at("worst_host_bytes").get<std::int64_t>());
      EXPECT_GE(ranks.at("worst_host_bytes"), ranks.at("host_bytes"));
    }
    std::vector<std::string> words =
        with_set(with_set({"launch", "c.toml"}, values), {fmt::format("memory.limit={}", device)});
    if (host > 0) {
      words = with_set(words, {fmt::format("memory.host_limit={}", host)});
    }
    const Result run = folder.orthant(words);
    EXPECT_EQ(run.code, 0) << run.output << run.error;
    words.insert(words.end(), {"--set", "run.name=again", "--resume", folder.checkpoint(2).string()});
    const Result again = folder.orthant(words);
    EXPECT_EQ(again.code, 0) << again.output << again.error;
  }
}

TEST(OffloadProgram, AFolderThatIsNotThereIsRefused) {
  ProgramFolder folder;
  folder.write("c.toml", run_test::tiny_config({}) + all_on_disk + "directory = \"/nowhere/at/all\"\n");
  const Result result = folder.orthant({"train", "c.toml"});
  EXPECT_EQ(result.code, 78) << result.output << result.error;
  EXPECT_THAT(result.error, HasSubstr("/nowhere/at/all"));
  EXPECT_THAT(result.error, HasSubstr("directory"));
}

}  // namespace
}  // namespace orthant::program_test
