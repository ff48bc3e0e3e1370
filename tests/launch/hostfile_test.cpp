#include "parallel/launch/hostfile.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::hostfile_test {
namespace {

using ::testing::HasSubstr;

class HostfileTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    std::ofstream(folder_.path() / "hosts") << text;
    return folder_.path() / "hosts";
  }
  std::string refusal(const std::string& text, int ranks) {
    try {
      mpirun_command(write(text), ranks, {}, {"orthant"});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  launch_test::TemporaryFolder folder_;
};

TEST_F(HostfileTest, ReadsHostsSlotsAndComments) {
  const auto hosts = read_hostfile(write("# ours\nnode1 slots=4\n\n  node2  # one slot\n"));
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].name, "node1");
  EXPECT_EQ(hosts[0].slots, 4);
  EXPECT_EQ(hosts[1].name, "node2");
  EXPECT_EQ(hosts[1].slots, 1);
}

TEST_F(HostfileTest, RefusesWhatItDoesNotUnderstandWithItsLine) {
  EXPECT_THAT(refusal("a slots=1\nb slot=2\n", 1), HasSubstr("hosts:2: found 'slot=2'"));
  EXPECT_THAT(refusal("a slots=0\n", 1), HasSubstr("hosts:1: found 'slots=0'"));
  EXPECT_THAT(refusal("a slots=2 b\n", 1), HasSubstr("hosts:1: found 'b' at the end"));
  EXPECT_THAT(refusal("a\na\n", 1), HasSubstr("hosts:2: the host 'a' stands here a second time"));
  EXPECT_THAT(refusal("# nothing\n", 1), HasSubstr("names no host"));
  EXPECT_THROW(read_hostfile(folder_.path() / "absent"), ConfigError);
}

// Their sum does not fit into 32 bits.
TEST_F(HostfileTest, APipeIsNotWaitedFor) {
  const std::filesystem::path pipe = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(test::error_of<ConfigError>([&] { read_hostfile(pipe); }), HasSubstr("is no file"));
}

TEST_F(HostfileTest, ManySlotsAreSummedOrRefused) {
  EXPECT_THAT(refusal("a slots=1594791000\nb slots=582810426\n", 1),
              HasSubstr("expected slots=N with N from 1 to 1048576"));
  std::string text;
  for (int host = 0; host < 2049; ++host) {
    text += fmt::format("h{} slots=1048576\n", host);
  }
  EXPECT_THAT(refusal(text, 1), Not(HasSubstr("slots for")));
}

// PBS and LSF write a line for each slot.
TEST_F(HostfileTest, LinesOfAnAllocationAddUp) {
  const auto hosts = read_hostfile(write("n1\nn1\nn2\nn1\n"), Repeats::add_up);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].slots, 3);
  EXPECT_EQ(hosts[1].slots, 1);
  const auto of = [](const std::string& variable, const std::string& other) {
    return allocated_hosts([=](const std::string& name) -> std::optional<std::string> {
      return name == variable || name == other ? std::optional<std::string>("/spool/" + name) : std::nullopt;
    });
  };
  EXPECT_EQ(of("PBS_NODEFILE", ""), "/spool/PBS_NODEFILE");
  EXPECT_EQ(of("LSB_DJOB_HOSTFILE", ""), "/spool/LSB_DJOB_HOSTFILE");
  EXPECT_EQ(of("", ""), "");
}

TEST_F(HostfileTest, AHostIsNoOption) {
  EXPECT_THAT(refusal("a\n-oProxyCommand=x\n", 1), HasSubstr("hosts:2: '-oProxyCommand=x' is no name of a host"));
}

TEST_F(HostfileTest, RefusesTooFewSlots) {
  EXPECT_THAT(refusal("a slots=2\nb slots=1\n", 4), HasSubstr("has 3 slots for 4 ranks"));
}

}  // namespace
}  // namespace orthant::hostfile_test
