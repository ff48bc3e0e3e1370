#include "parallel/launch/memory_kills.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::memory_kills_test {
namespace {

using testing::HasSubstr;

class MemoryKillsTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << text;
  }
  MemoryKills count() { return count_memory_kills(folder_.path()); }
  TemporaryFolder folder_;
};

TEST_F(MemoryKillsTest, AreReadFromTheControlGroupOfEitherVersion) {
  write("proc/vmstat", "nr_free_pages 12\noom_kill 7\n");
  EXPECT_EQ(count().on_machine, 7);
  EXPECT_EQ(count().in_group, std::nullopt);
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.events", "low 0\nmax 9\noom 3\noom_kill 2\n");
  EXPECT_EQ(count().in_group, 2);
  write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  EXPECT_EQ(count().in_group, 4);
}

TEST_F(MemoryKillsTest, NothingReadableIsNoError) {
  EXPECT_EQ(count().in_group, std::nullopt);
  EXPECT_EQ(count().on_machine, std::nullopt);
  EXPECT_FALSE(account_of_kill(count(), count()).at_a_limit);
}

TEST(KillAccountText, SaysOutOfMemoryWhereACountHasRisen) {
  const KillAccount group = account_of_kill({1, 5}, {3, 7});
  EXPECT_TRUE(group.at_a_limit);
  EXPECT_THAT(group.text, HasSubstr("killed 2 process(es) of this job"));
  EXPECT_THAT(account_of_kill({1, 5}, {1, 6}).text, HasSubstr("killed 1 process(es) on this machine"));
  const KillAccount other = account_of_kill({1, 5}, {1, 5});
  EXPECT_FALSE(other.at_a_limit);
  EXPECT_THAT(other.text, HasSubstr("Was it out of memory"));
}

}  // namespace
}  // namespace orthant::launch_test::memory_kills_test
