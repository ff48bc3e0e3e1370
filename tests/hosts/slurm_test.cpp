// The batch scripts of the documentation, as they stand there, on a Slurm of two nodes that are network namespaces of
// this machine (slurm.sh).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::slurm_test {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int not_permitted = 77;  // of two_hosts.sh and slurm.sh

// Every batch script for Slurm in docs/guides/cluster.md.
std::vector<std::string> scripts() {
  std::vector<std::string> found;
  std::ifstream page(paths::source("docs/guides/cluster.md"));
  bool inside = false;
  std::string script;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("```")) {
      if (inside && script.find("\n#SBATCH ") != std::string::npos) {
        found.push_back(script);
      }
      inside = !inside;
      script.clear();
    } else if (inside) {
      script += line + "\n";
    }
  }
  return found;
}

int number_behind(const std::string& script, const std::string& option) {
  std::smatch found;
  return std::regex_search(script, found, std::regex(option + "=([0-9]+)")) ? std::stoi(found[1]) : -1;
}

// The words behind ./launch.
std::vector<std::string> words_of_launch(std::string script) {
  for (std::size_t at; (at = script.find("\\\n")) != std::string::npos;) {
    script.erase(at, 2);
  }
  std::istringstream words(script.substr(script.find("./launch ") + 9, std::string::npos));
  std::string line;
  std::getline(words, line);
  std::istringstream rest(line);
  std::vector<std::string> found;
  for (std::string word; rest >> word && word != "&";) {
    found.push_back(word);
  }
  return found;
}

class Slurm : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mpirun(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    ASSERT_EQ(scripts().size(), 2u);
  }

  // A folder as a user's checkout, in which a script runs: a configuration of the script's name, and a program for
  // ./launch that is built already.
  void make_checkout(const std::string& name, const std::string& script) const {
    std::string config = tiny_config({2, 1});
    for (const auto& [from, to] :
         {std::pair("steps = 8", "steps = 1000000"), std::pair("\"text.txt", "\"../../text.txt"),
          std::pair("sequences = 4", "sequences = 8"), std::pair("timeout_seconds = 20", "timeout_seconds = 600")}) {
      config.replace(config.find(from), std::string(from).size(), to);
    }
    folder_.write(name + "/" + words_of_launch(script).front(), config);
    folder_.write(name + "/job", script);
    folder_.write(name + "/launch", fmt::format("#!/bin/sh\nexec {} launch \"$@\"\n", paths::program()));
    fs::permissions(folder_.path(name + "/launch"), fs::perms::owner_all);
  }
  // A shell's commands on the first node.
  Result on_first(const std::string& commands) const {
    return folder_.command(
        {paths::source("tests/hosts/two_hosts.sh"), paths::source("tests/hosts/slurm.sh"), "bash", "-c", commands},
        {"OMP_WAIT_POLICY=passive", "SLURM_KILL_WAIT=2"});
  }

  ProgramFolder folder_;
};

TEST_F(Slurm, ScriptsOfTheDocsAskForTheTasksOfTheirLayout) {
  for (const std::string& script : scripts()) {
    const int tasks = number_behind(script, "--nodes") * number_behind(script, "--ntasks-per-node");
    std::vector<std::string> words = {"launch", "--dry-run"};
    for (std::string word : words_of_launch(script)) {
      words.push_back(word.starts_with("configs/") ? paths::source(word) : word);
    }
    const Result result = folder_.orthant(words);
    EXPECT_EQ(result.code, 0) << script << result.error;
    EXPECT_THAT(result.output, ContainsRegex(fmt::format("^mpirun -np {} ", tasks))) << script;
  }
}

// Slurm's warning before the time limit (--signal, sent here at once), and the requeue that the script asks for.
TEST_F(Slurm, ScriptsOfTheDocsAreStoppedSavedRequeuedAndGoOn) {
  std::string names;
  for (const std::string& script : scripts()) {
    const bool to_script = script.find("--signal=B:TERM@") != std::string::npos;
    ASSERT_TRUE(to_script || script.find("--signal=TERM@") != std::string::npos) << script;
    const std::string name = to_script ? "to_script" : "to_ranks";
    make_checkout(name, script);
    names += " " + name;
  }
  const Result result = on_first("names='" + names + R"sh('
    until_there() { for i in $(seq 400); do grep -qs "$2" $1/slurm-*.out && return; sleep 0.1; done; }
    for name in $names; do (cd $name && sbatch --parsable job > id); done
    for name in $names; do
      until_there $name 'step 1/'
      [[ $name == to_script ]] && batch=--batch || batch=
      scancel $batch --signal=TERM $(<$name/id)
    done
    for name in $names; do until_there $name 'resumed from'; done
    for name in $names; do
      scontrol show job $(<$name/id) | grep -o 'Restarts=[0-9]*'
      cp $name/slurm-*.out $name/output
    done)sh");
  if (result.code == not_permitted) {
    GTEST_SKIP() << result.output;
  }
  EXPECT_EQ(result.code, 0) << result.error;
  for (const char* name : {"to_ranks", "to_script"}) {
    SCOPED_TRACE(name);
    const std::vector<std::string> lines = lines_of(folder_.path(std::string(name) + "/output"));
    EXPECT_THAT(lines, testing::Contains(ContainsRegex("stopped after step [0-9]+; go on with --resume auto")));
    EXPECT_THAT(lines,
                testing::Contains(ContainsRegex("resumed from runs/r/checkpoints/step_[0-9]+ after step [0-9]+")));
  }
  EXPECT_THAT(result.output, HasSubstr("Restarts=1")) << result.output;
  EXPECT_THAT(result.output, testing::Not(HasSubstr("Restarts=0"))) << result.output;
}

// A signal to the tasks of a job reaches mpirun's daemon on the second node, too; one that ended would take its ranks
// with it.
TEST_F(Slurm, DaemonsOfMpirunOutliveTheSignalThatStopsTheirRanks) {
  make_checkout("c", scripts().back());
  const Result result = on_first(R"sh(
    cd c
    job=$(sbatch --parsable job)
    for i in $(seq 400); do grep -qs 'step 1/' slurm-*.out && break; sleep 0.1; done
    scancel --signal=TERM $job
    for i in $(seq 300); do
      [[ $(scontrol show job $job) == *JobState=RUNNING* ]] || break
      sleep 0.1
    done
    scontrol show job $job | grep -oE 'Restarts=[^ ]*'
    ls runs/r/checkpoints
    cat slurm-*.out >&2)sh");
  if (result.code == not_permitted) {
    GTEST_SKIP() << result.output;
  }
  EXPECT_THAT(result.output, HasSubstr("Restarts=1")) << result.error;
  // Not that rank 0 said so: mpirun drops words of the others when the first rank ends.
  EXPECT_THAT(result.output, ContainsRegex("step_[0-9]+")) << result.error;
  EXPECT_THAT(result.error, testing::Not(HasSubstr("lost communication")));
}

// Long before run.timeout_seconds (600): --kill-on-bad-exit, and KillWait. It is no stop, so the job is not put into
// the queue again.
TEST_F(Slurm, ARankThatIsKilledUnderSrunEndsTheJob) {
  make_checkout("c", scripts().front());
  const Result result = on_first(R"sh(
    cd c
    job=$(sbatch --parsable job)
    for i in $(seq 400); do grep -qs 'step 1/' slurm-*.out && break; sleep 0.1; done
    here=$(readlink /proc/self/ns/net)
    for rank in /proc/[0-9]*; do
      [[ $(readlink $rank/exe) == */orthant && $(tr '\0' ' ' < $rank/cmdline) == *" train "* ]] || continue
      [[ $(readlink $rank/ns/net) != "$here" ]] && kill -9 ${rank#/proc/} && break
    done
    for i in $(seq 300); do
      state=$(scontrol show job $job | grep -o 'JobState=.*')
      [[ $state == *RUNNING* || $state == *COMPLETING* ]] || break
      sleep 0.1
    done
    scontrol show job $job | grep -oE '(JobState|Restarts|ExitCode)=[^ ]*'
    cat slurm-*.out >&2)sh");
  if (result.code == not_permitted) {
    GTEST_SKIP() << result.output;
  }
  EXPECT_THAT(result.output, HasSubstr("JobState=FAILED")) << result.error;
  EXPECT_THAT(result.output, HasSubstr("ExitCode=137:0"));
  EXPECT_THAT(result.output, HasSubstr("Restarts=0"));
  EXPECT_THAT(result.error, ContainsRegex("launch: rank [4-7] failed: it was killed by signal 9"));
}

}  // namespace
}  // namespace orthant::run_test::slurm_test
