// Machine files: those of the tree load, absurd ones are refused by name.
#include "apps/cost/machine_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <orthant/error.h>

#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/run_supervisor.h"

namespace orthant::cost_test {
namespace {

using testing::HasSubstr;

const char* const good = R"(name = "toy"
generation = "toy"
memory_gb = 80
memory_gb_s = 2000

[peak_tflops]
fp32 = 20
half = 300

[[link]]
name = "inside"
ranks = 8
gb_s = 300
latency_us = 3

[[link]]
name = "between"
gb_s = 25
latency_us = 8

[factors]
products = 0.8
memory = 0.8
links = 0.7
network = 0.7
launch_us = 8
)";

class MachineFile : public testing::Test {
 protected:
  std::string written(const std::string& text) const {
    const std::string path = (directory_.path() / "toy.toml").string();
    std::ofstream(path) << text;
    return path;
  }
  // `good` with one piece of text in the place of another.
  std::string refusal(const std::string& from, const std::string& to) const {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return test::error_of<ConfigError>([&] { cost::load_machine(written(text), {}); });
  }
  launch_test::TemporaryFolder directory_;
};

TEST_F(MachineFile, IsReadInTheUnitsOfItsKeys) {
  const cost::Machine machine = cost::load_machine(written(good), {});
  EXPECT_EQ(machine.name, "toy");
  EXPECT_EQ(machine.memory, 80e9);
  EXPECT_EQ(machine.memory_bandwidth, 2e12);
  EXPECT_EQ(machine.peak_of(cost::Precision::half), 3e14);
  EXPECT_EQ(machine.peak_of(cost::Precision::fp8), 3e14);  // none: the next wider type
  ASSERT_EQ(machine.links.size(), 2u);
  EXPECT_EQ(machine.node(), 8);
  EXPECT_DOUBLE_EQ(machine.links[1].latency, 8e-6);
  EXPECT_DOUBLE_EQ(machine.factors.launch, 8e-6);
}

TEST_F(MachineFile, AbsurdOnesAreRefused) {
  EXPECT_EQ(refusal("gb_s = 300", "gb_s = 299"), "no error");
  EXPECT_THAT(refusal("gb_s = 300", "gb_s = 0"), HasSubstr("[[link]] gb_s is 0"));
  EXPECT_THAT(refusal("gb_s = 300", "gb_s = 0"), HasSubstr("write a number above 0"));
  EXPECT_THAT(refusal("memory_gb = 80", "memory_gb = -80"), HasSubstr("memory_gb is -80"));
  EXPECT_THAT(refusal("half = 300", "hlaf = 300"), HasSubstr("did you mean 'half'?"));
  EXPECT_THAT(refusal("memory_gb_s = 2000", "bandwidth = 2000"), HasSubstr("a machine has no key 'bandwidth'"));
  EXPECT_THAT(refusal("memory_gb_s = 2000", "bandwidth = 2000"), HasSubstr("a machine needs memory_gb_s"));
  EXPECT_THAT(refusal("latency_us = 3", "latency_us = \"fast\""), HasSubstr("[[link]] latency_us"));
  EXPECT_THAT(refusal("ranks = 8\n", ""), HasSubstr("list links from the nearest on"));
  EXPECT_THAT(refusal("products = 0.8", "products = 7"), HasSubstr("[factors] products"));
  EXPECT_THAT(refusal("launch_us = 8\n", ""), HasSubstr("[factors] needs launch_us"));
  EXPECT_THAT(refusal("name = \"toy\"\n", ""), HasSubstr("a machine needs name"));
  EXPECT_THAT(refusal("[factors]", "[factor]"), HasSubstr("did you mean 'factors'?"));
  EXPECT_THAT(refusal("memory_gb = 80", "memory_gb = 80 GB"), HasSubstr("toy.toml:3"));
}

TEST_F(MachineFile, NeedsLinksAndFactors) {
  std::string text = good;
  text.resize(text.find("[[link]]"));
  const std::string refused = test::error_of<ConfigError>([&] { cost::load_machine(written(text), {}); });
  EXPECT_THAT(refused, HasSubstr("a machine needs a [[link]]"));
  EXPECT_THAT(refused, HasSubstr("there are no factors of the generation 'toy'"));
}

TEST_F(MachineFile, FactorsAreWrittenAsTheyAreRead) {
  cost::FactorFile factors;
  factors.practice = {0.5, 0.75, 0.02, 0.125};
  factors.generations["toy"] = {0.75, 0.5, 0.25, 0.125, 4e-6};
  factors.spreads["papers"] = 0.25;
  const std::string path = (directory_.path() / "factors.toml").string();
  std::ofstream(path) << cost::factors_toml(factors, "# a comment\n");
  const cost::FactorFile read = cost::load_factors(path);
  EXPECT_EQ(read.practice.overlap, 0.75);
  EXPECT_EQ(read.practice.step, 0.02);
  EXPECT_EQ(read.generations.at("toy").links, 0.25);
  EXPECT_DOUBLE_EQ(read.generations.at("toy").launch, 4e-6);
  EXPECT_EQ(read.spreads.at("papers"), 0.25);
}

TEST(MachineFiles, OfTheTreeLoadAndNameThemselves) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(paths::source("configs/machines"))) {
    if (entry.path().extension() != ".toml" || entry.path().filename() == "factors.toml") {
      continue;
    }
    const cost::Machine machine = cost::load_machine(entry.path().string());
    EXPECT_EQ(machine.name, entry.path().stem().string());
    EXPECT_GE(machine.links.size(), 2u);
    EXPECT_GT(machine.links[0].bandwidth, machine.links[1].bandwidth) << machine.name;
    EXPECT_GT(machine.peak_of(cost::Precision::half), machine.peak_of(cost::Precision::fp32)) << machine.name;
    ++files;
  }
  EXPECT_GE(files, 11);
}

}  // namespace
}  // namespace orthant::cost_test
