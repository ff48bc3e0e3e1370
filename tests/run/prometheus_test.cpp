// Prometheus's file, read line by line by its format.
#include "core/run/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::run_test::prometheus_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Samples of a file, each line of which must be one of the format's.
Samples read(const fs::path& file) {
  static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) gauge)"),
      sample(R"(([a-zA-Z_:][a-zA-Z0-9_:]*\{([a-z]+="([^"\\]|\\["\\n])*",?)*\}) (NaN|-?[0-9.]+(e[-+]?[0-9]+)?))");
  Samples found;
  std::string typed;
  for (const std::string& line : lines_of(file)) {
    std::smatch match;
    if (std::regex_match(line, match, type)) {
      typed = match[1];
      continue;
    }
    EXPECT_TRUE(std::regex_match(line, match, sample)) << line;
    const std::string name = match[1];
    EXPECT_EQ(name.substr(0, name.find('{')), typed) << "a sample stands behind its type";
    EXPECT_TRUE(found.emplace(name, match[4] == "NaN" ? std::nan("") : std::stod(match[4])).second)
        << "twice: " << name;
  }
  return found;
}

TEST(Prometheus, ALineIsSamplesWithLabels) {
  const Samples samples = prometheus_samples(
      R"({"step":20,"loss":2.5,"grad_norm":null,"peak_by_kind":{"weights":7},"expert_tokens":{"0":[1,2]},)"
      R"("routing":{"1":{"margin":0.25,"coactivation":[[1]]}},"mine.spikes":3,"run_id":"x","alarms":["a"]})",
      "a \"b\"\\\n");
  const std::string run = R"(run="a \"b\"\\\n")";
  ASSERT_EQ(samples.size(), 6u);
  EXPECT_EQ(samples.at("orthant_step{" + run + "}"), 20);
  EXPECT_EQ(samples.at("orthant_loss{" + run + "}"), 2.5);
  EXPECT_TRUE(std::isnan(samples.at("orthant_grad_norm{" + run + "}")));
  EXPECT_EQ(samples.at("orthant_peak_by_kind{" + run + R"(,of="weights"})"), 7);
  EXPECT_EQ(samples.at("orthant_routing_margin{" + run + R"(,layer="1"})"), 0.25);
  EXPECT_EQ(samples.at("orthant_mine_spikes{" + run + "}"), 3);
  EXPECT_THAT(test::error_of([] { prometheus_samples("[1]", "a"); }), HasSubstr("no JSON object"));
}

TEST(Prometheus, TheFileHasTheNewestOfEachAndIsWhole) {
  const ProgramFolder folder;
  const fs::path file = folder.path("a.prom");
  {
    PrometheusFile prometheus(file, "a");
    EXPECT_EQ(read(file).at("orthant_running{run=\"a\"}"), 1);
    prometheus.write(R"({"step":1,"validation_loss":3.5})");
    prometheus.write(R"({"step":2,"loss":null})");
    const Samples now = read(file);
    EXPECT_EQ(now.at("orthant_step{run=\"a\"}"), 2);
    EXPECT_EQ(now.at("orthant_validation_loss{run=\"a\"}"), 3.5) << "of the last line that had it";
    EXPECT_TRUE(std::isnan(now.at("orthant_loss{run=\"a\"}")));
    const double seconds = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    EXPECT_NEAR(now.at("orthant_line_time_seconds{run=\"a\"}"), seconds, 60);
  }
  EXPECT_EQ(read(file).at("orthant_running{run=\"a\"}"), 0);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("a.prom.")) << entry.path();
  }
}

TEST(Prometheus, WhatIsNoSuchFileStays) {
  const ProgramFolder folder;
  folder.write("c.toml", "[run]\n");
  fs::create_directory(folder.path("folder"));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", folder.path("link"));
  for (const char* name : {"c.toml", "folder", "pipe", "link"}) {
    testing::internal::CaptureStderr();
    {
      PrometheusFile prometheus(folder.path(name), "a");
      prometheus.write(R"({"step":1})");
    }
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("is there and is no file of run.prometheus")) << name;
    EXPECT_FALSE(fs::exists(folder.path(fmt::format("{}.{}.new", name, getpid())))) << name;
  }
  EXPECT_EQ(fs::file_size(folder.path("c.toml")), 6u);
  EXPECT_TRUE(fs::is_directory(folder.path("folder")));
  EXPECT_TRUE(fs::is_fifo(folder.path("pipe")));
  EXPECT_TRUE(fs::is_symlink(folder.path("link")));

  folder.write("empty", "");
  for (int start = 0; start < 2; ++start) {  // the second one finds the file of the first
    const PrometheusFile prometheus(folder.path("empty"), "a");
    EXPECT_EQ(read(folder.path("empty")).at("orthant_running{run=\"a\"}"), 1);
  }
}

TEST(Prometheus, ARunKeepsItsFile) {
  const ProgramFolder folder;
  folder.write("c.toml", tiny_config({.data = 2}));
  const Result done = folder.orthant(
      with_set({"launch", "c.toml"}, {"run.name=r", "run.steps=4", "run.log_every=1", "run.prometheus=r.prom"}));
  ASSERT_EQ(done.code, 0) << done.error;
  const Samples samples = read(folder.path("r.prom"));
  const nlohmann::json last = nlohmann::json::parse(lines_of(folder.run() / "metrics.jsonl").back());
  for (const char* key : {"step", "loss", "tokens", "grad_norm", "drop_rate", "step_seconds"}) {
    EXPECT_DOUBLE_EQ(samples.at(std::string("orthant_") + key + "{run=\"r\"}"), last.at(key).get<double>()) << key;
  }
  EXPECT_EQ(samples.at("orthant_running{run=\"r\"}"), 0);

  const Result without = folder.orthant(with_set(
      {"launch", "c.toml"}, {"run.name=n", "run.steps=3", "run.log_every=1", "run.prometheus=nowhere/n.prom"}));
  EXPECT_EQ(without.code, 0);
  const std::string& said = without.error + without.output;
  EXPECT_THAT(said, HasSubstr("run.prometheus: 'nowhere/n.prom' cannot be written"));
  EXPECT_EQ(said.find("run.prometheus:"), said.rfind("run.prometheus:")) << "once";
}

}  // namespace
}  // namespace orthant::run_test::prometheus_test
