// Training over two hosts, which are network namespaces of this machine (two_hosts.sh), beside the same layout on one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::two_hosts_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int not_permitted = 77;  // of two_hosts.sh

class TwoHosts : public testing::Test {
 protected:
  TwoHosts() {
    folder_.write("c.toml", tiny_config({4, 2}));
    folder_.write("hosts", "10.77.0.1 slots=2  # the first\n10.77.0.2 slots=2\n");
  }
  void SetUp() override {
    if (const std::string why = why_no_mpirun(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    const Result hosts = on_first("true");
    if (hosts.code == not_permitted) {
      GTEST_SKIP() << hosts.output;
    }
    ASSERT_EQ(hosts.code, 0) << hosts.output << hosts.error;
  }

  // A shell's commands on the first host.
  Result on_first(const std::string& commands) const {
    return folder_.command({paths::source("tests/hosts/two_hosts.sh"), "bash", "-c", commands},
                           {"ASAN_OPTIONS=detect_leaks=0"});  // MPI's own, at exit
  }
  // The command that trains over both hosts as run `name`.
  static std::string launch(const std::string& name, const std::vector<std::string>& values = {}) {
    std::string line = fmt::format("{} launch --hostfile hosts c.toml --set run.communicator=mpi --set run.name={}",
                                   paths::program(), name);
    for (const std::string& value : values) {
      line += fmt::format(" --set '{}'", value);
    }
    return line;
  }
  // Lines of metrics without what differs from run to run.
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    std::vector<nlohmann::json> lines;
    for (const std::string& line : lines_of(folder_.run(name) / "metrics.jsonl")) {
      nlohmann::json step = nlohmann::json::parse(line);
      for (const char* other : {"step_seconds", "save_seconds", "tokens_per_second", "peak_bytes", "run_id"}) {
        step.erase(other);
      }
      lines.push_back(std::move(step));
    }
    return lines;
  }

  ProgramFolder folder_;
};

// Sums have one order, so every bit is the same. The cable's counter shows that the ranks were not all on one side.
TEST_F(TwoHosts, TrainAsOneDoes) {
  struct Case {
    const char* name;
    const char* plugins;  // four ranks; those of the outermost axis lie on different hosts
  };
  const Case cases[] = {
      {"data x expert", "[plugins.data]\nsize = 4\n[plugins.expert]\nsize = 2\n"},
      {"pipeline x data x expert",
       "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n"},
      {"sequence x data x expert",
       "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 4\n"},
  };
  const std::string one_rank = tiny_config({1, 1});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    folder_.write("c.toml", one_rank.substr(0, one_rank.find("[plugins.")) + c.plugins);
    fs::remove_all(folder_.path("runs"));
    const Result one = folder_.orthant(with_set({"launch", "c.toml"}, {"run.name=\"one\""}));
    ASSERT_EQ(one.code, 0) << one.output << one.error;
    const Result two = on_first(launch("two") + " && awk '/cable:/ { print \"cable\", $10 }' /proc/net/dev");
    ASSERT_EQ(two.code, 0) << two.output << two.error;
    EXPECT_THAT(metrics("two"), testing::SizeIs(8));
    EXPECT_EQ(metrics("two"), metrics("one"));
    EXPECT_THAT(differences(folder_.checkpoint(8, "two"), folder_.checkpoint(8, "one")), IsEmpty());
    const auto found = two.output.find("cable ");
    ASSERT_NE(found, std::string::npos) << two.output;
    EXPECT_GT(std::stol(two.output.substr(found + 6)), 100'000) << "hardly anything was sent to the second host";
  }
}

// The settings that docs/guides/cluster.md names, given to the launcher on the first host, hold on both.
TEST_F(TwoHosts, NetworksAndPortsAreThoseAskedFor) {
  const Result result = on_first(
      "export OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24\n"
      "export OMPI_MCA_btl_tcp_port_min_v4=20000 OMPI_MCA_btl_tcp_port_range_v4=100\n"
      "export OMPI_MCA_oob_tcp_dynamic_ipv4_ports=21000-21010\n" +
      launch("r", {"run.steps=1000000"}) + R"sh( &
    until [[ -s runs/r/metrics.jsonl ]]; do sleep 0.05; done
    ss -tn  # connections of the first host
    kill -9 %1)sh");
  // Every connection between the hosts has a chosen port at one of its ends.
  int data = 0, daemons = 0;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("ESTAB") && line.find("10.77.0.2:") != std::string::npos) {
      const bool ranks = line.find(":200") != std::string::npos, daemon = line.find(":210") != std::string::npos;
      EXPECT_TRUE(ranks || daemon) << line;
      data += ranks ? 1 : 0;
      daemons += daemon ? 1 : 0;
    }
  }
  EXPECT_GE(data, 1) << result.output << result.error;
  EXPECT_GE(daemons, 1) << result.output << result.error;
}

// Each writes its files where the other does not see them: told at the start, by host and path.
TEST_F(TwoHosts, ARunFolderOfEachOnesOwnIsRefused) {
  const Result result = on_first(R"sh(
    mkdir runs
    sed "s|exec nsenter|exec unshare --mount sh -c 'mount -t tmpfs other $PWD/runs; exec \"\$@\"' - nsenter|" \
      $TWO_HOSTS_AGENT > agent && chmod +x agent
    OMPI_MCA_plm_rsh_agent=$PWD/agent )sh" +
                                 launch("r", {"run.checkpoint_every=1"}));
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.error + result.output, testing::ContainsRegex("second.*runs/r|runs/r.*second"));
  EXPECT_FALSE(fs::exists(folder_.run("r") / "checkpoints/step_000001"));
}

TEST_F(TwoHosts, AHostThatCannotBeReachedEndsTheStart) {
  folder_.write("hosts", "10.77.0.1 slots=2\n10.77.0.9 slots=2\n");
  const Result result = on_first(launch("r"));
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.error + result.output, HasSubstr("unable to reliably start"));
  EXPECT_FALSE(fs::exists(folder_.run("r") / "metrics.jsonl"));
}

// Shell functions: whether a process is `orthant`, and all that are, on both hosts. Those that have ended do not count.
const std::string ranks_here = R"sh(
    is_orthant() { [[ $(readlink /proc/$1/exe) == */orthant ]]; }
    all() { for folder in /proc/[0-9]*; do is_orthant ${folder#/proc/} && echo ${folder#/proc/}; done; }
)sh";

// Kills a rank of the second host in the middle of a run: all end. A rank is a child of the process that mpirun
// started.
TEST_F(TwoHosts, ARankKilledOnOneEndsTheRunOnBoth) {
  const Result result = on_first(ranks_here + launch("r", {"run.steps=1000000"}) + R"sh( &
    until [[ -s runs/r/metrics.jsonl ]]; do sleep 0.05; done
    here=$(readlink /proc/self/ns/net)
    for rank in $(all); do
      if [[ $(readlink /proc/$rank/ns/net) != "$here" ]] && is_orthant $(awk '/PPid/ { print $2 }' /proc/$rank/status); then
        kill -9 $rank
        break
      fi
    done
    wait %1; code=$?
    for i in $(seq 50); do [[ -z $(all) ]] && break; sleep 0.1; done
    echo "left: $(all | wc -l)"
    exit $code)sh");
  EXPECT_EQ(result.code, 137) << result.output << result.error;
  EXPECT_THAT(result.error, testing::ContainsRegex("launch: rank [23] failed: it was killed by signal 9"));
  EXPECT_THAT(result.output, HasSubstr("left: 0"));
}

// The ranks of both hosts say so after run.timeout_seconds, and end. mpirun itself would wait for the daemon of the
// lost host for many minutes: see docs/guides/cluster.md.
TEST_F(TwoHosts, ACableThatIsCutEndsTheRanksOfBoth) {
  const Result result = on_first(ranks_here + launch("r", {"run.steps=1000000", "run.timeout_seconds=2"}) + R"sh( &
    until [[ -s runs/r/metrics.jsonl ]]; do sleep 0.05; done
    ip link set cable down
    left() { all | grep -vx $! | wc -l; }  # the launcher waits for mpirun
    for i in $(seq 300); do [[ $(left) == 0 ]] && break; sleep 0.1; done
    echo "left: $(left)"
    kill -9 %1)sh");
  EXPECT_THAT(result.output, HasSubstr("left: 0"));
  for (const char* rank : {"0", "3"}) {
    EXPECT_THAT(lines_of(folder_.run("r") / fmt::format("logs/rank_{}.log", rank)),
                testing::Contains(testing::ContainsRegex("(did not arrive|did not complete).* within 2 s")))
        << rank;
  }
}

}  // namespace
}  // namespace orthant::run_test::two_hosts_test
