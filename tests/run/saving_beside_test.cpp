// Checkpoints that are written while the training goes on (SavingBeside), on threads for ranks and a disk that tests
// hold up: what is written is the state of its step to the bit, and what fails ends the save for all.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/dry_run/promise.h"
#include "core/run/saving.h"
#include "core/run/saving_beside.h"
#include "parallel/host_collectives.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::saving_beside_test {
namespace {

namespace fs = std::filesystem;
using test::axes;
using test::experiment;
using test::Overrides;
using test::TestRank;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Writes and syncs wait until it is opened.
class HeldDisk {
 public:
  Disk disk() {
    return Disk([this](std::string_view operation, const fs::path&) {
      while (held_ && operation == "write") {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  void hold(bool held) { held_ = held; }

 private:
  std::atomic<bool> held_ = true;
};

// As a run does it after each step.
void meet(SavingBeside& saving, TestRank& rank) {
  const SavingBeside::Word own = saving.word();
  std::vector<std::int64_t> all(own.begin(), own.end());
  all_reduce_values(all, ReduceOp::max, rank.trainer().world(), rank.stream());
  require_all_alive(rank.trainer().world(), rank.stream());
  saving.hear({all[0], all[1]});
}

struct Layout {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

std::string zero(int stage, int ranks, const std::string& more = "whole_below = 0\n") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\n{}", ranks, stage, more);
}

std::string out_of_tree(const std::string& name, const std::string& keys) {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n{}", name, paths::out_of_tree(name), keys);
}

Config with_async(const Layout& layout, Overrides more = {}) {
  more.insert(more.end(), layout.overrides.begin(), layout.overrides.end());
  more.insert(more.end(), {"run.checkpoint_async=true", "run.checkpoint_every=1"});
  return experiment(more, layout.plugins);
}

class Layouts : public testing::TestWithParam<Layout> {};

// Each of two steps is saved by both kinds of save; while the one beside is held up, two steps more are trained.
TEST_P(Layouts, WriteTheStateOfTheirStep) {
  const ProgramFolder folder;
  const Config config = with_async(GetParam());
  const std::int64_t promised = memory_need(config).host;
  HeldDisk disk;
  std::mutex mutex;
  std::int64_t most = 0;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    rank.stream().device().limit_host_memory(promised);
    const SavingRanks ranks{communicator, rank.trainer().world()};
    SavingBeside saving(folder.path("beside"), ranks, {}, nullptr, disk.disk());
    int step = 0;
    for (int save = 0; save < 2; ++save) {
      rank.trainer().step(step++);
      save_checkpoint(folder.path("waited_for"), step, rank.session().plan(), rank.trainer().parameters(), {}, ranks,
                      rank.stream());
      disk.hold(true);
      rank.trainer().world().barrier(rank.stream());
      rank.stream().synchronize();
      saving.begin(step, rank.session().plan(), rank.trainer().parameters(), {}, rank.stream());
      for (int more = 0; more < 2; ++more) {
        rank.trainer().step(step++);
        meet(saving, rank);
        EXPECT_TRUE(saving.under_way());
      }
      require_all_alive(rank.trainer().world(), rank.stream());
      disk.hold(false);
      save == 0 ? saving.finish() : [&] {
        while (saving.under_way()) {
          rank.trainer().step(step++);
          meet(saving, rank);
        }
      }();
    }
    const std::lock_guard lock(mutex);
    most = std::max(most, rank.stream().device().host_memory().peak_bytes);
  });
  for (const int step : {1, 4}) {
    const fs::path beside = checkpoint_folder(folder.path("beside"), step);
    CheckpointReader(beside).verify();
    EXPECT_THAT(differences(beside, checkpoint_folder(folder.path("waited_for"), step)), IsEmpty()) << step;
  }
  EXPECT_THAT(differences(checkpoint_folder(folder.path("beside"), 1), checkpoint_folder(folder.path("beside"), 4)),
              Not(IsEmpty()))
      << "and training does change weights";
  EXPECT_LE(most, promised);
  EXPECT_GE(static_cast<double>(most), 0.85 * static_cast<double>(promised)) << "the promise is far too cautious";
}

const Layout layouts[] = {
    {"one_rank", ""},
    {"data", axes(2)},
    {"data_of_three", axes(3), {"batch.sequences=9", "model.d_model=18", "model.heads=3"}},
    {"experts", axes(4, 2)},
    {"zero1", zero(1, 4)},
    {"zero3_experts", zero(3, 4) + axes(0, 2)},
    {"hybrid", zero(3, 4, "shard_ranks = 2\nwhole_below = 1200\n")},
    {"tensor_zero1", "[plugins.tensor]\nsize = 2\n" + zero(1, 2)},
    {"pipeline", "[plugins.pipeline]\nsize = 2\n" + axes(2), {"batch.micro_batch=1"}},
    {"sequence", "[plugins.sequence]\nsize = 2\n"},
    {"offloaded_states", axes(2) + "[plugins.offload]\nstates = \"host\"\n"},
    {"lazy_experts", axes(2) + "[plugins.offload]\nexpert_states = \"lazy\"\nstates = \"host\"\n"},
    {"eight_bits",
     axes(2),
     {"run.dtype=\"bf16\"", "optimizer.master_weights=\"none\"", "optimizer.state_dtype=\"8bit\"", "model.d_model=32",
      "model.d_ff=64", "moe.d_expert=64"}},
    {"gate_with_a_state", axes(2), {"moe.router=\"bias\""}},
    {"muon", axes(2), {"optimizer.name=\"muon\""}},
    {"adapters", axes(2), {"lora.rank=2", "lora.targets=[\"*.q_proj.weight\", \"*.w1.weight\"]"}},
    {"workers", out_of_tree("local_sgd", "size = 2\nevery = 2\n") + zero(1, 2)},
    {"summed_states", out_of_tree("topk_sums", "density = 0.1\n") + axes(2)},
    {"late_device", axes(2), {"run.device=\"late\""}},
    {"guarded_device", axes(2), {"run.device=\"guarded\""}},
};
INSTANTIATE_TEST_SUITE_P(SavingBeside, Layouts, testing::ValuesIn(layouts),
                         [](const auto& instance) { return std::string(instance.param.name); });

// --- what fails

struct Ended {
  std::vector<std::string> reasons;  // by rank; empty: none
  std::vector<std::string> left;     // in the folder of checkpoints
};

// Two ranks save after a step, and train on until the save is complete or has failed. `disks`: by rank.
Ended train_with(const std::vector<Disk>& disks, const fs::path& root, const SavingBeside::Rules& rules = {},
                 double disk_timeout_seconds = 1800, int steps = 1000) {
  const Config config = experiment({}, axes(2));
  Ended ended{.reasons = {"", ""}, .left = {}};
  run_threads(2, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    const SavingRanks ranks{communicator, rank.trainer().world(), disk_timeout_seconds};
    try {
      SavingBeside saving(root, ranks, rules, nullptr, disks[communicator.rank()]);
      saving.begin(1, rank.session().plan(), rank.trainer().parameters(), {}, rank.stream());
      for (int step = 0; saving.under_way() && step < steps; ++step) {
        rank.trainer().step(step);
        meet(saving, rank);
      }
      if (saving.under_way()) {
        fail("the run fails");
      }
    } catch (const std::exception& failure) {
      communicator.abort(failure.what());
      ended.reasons[communicator.rank()] = failure.what();
    }
  });
  for (const auto& entry : fs::directory_iterator(root)) {
    ended.left.push_back(entry.path().filename().string());
  }
  return ended;
}

Disk failing(const std::string& operation, const std::string& file) {
  return Disk([operation, file](std::string_view now, const fs::path& path) {
    require(now != operation || path.string().find(file) == std::string::npos, "cannot {} '{}': the test says so", now,
            path.string());
  });
}

TEST(SavingBeside, OneRankThatFailsEndsItForAllByItsReason) {
  struct Fault {
    int rank;
    const char *operation, *file;
  };
  for (const auto& [rank, operation, file] : {Fault{1, "write", "rank_00001"},
                                              {0, "sync", "rank_00000"},
                                              {1, "create", "rank_00001"},
                                              {0, "write", "manifest"},
                                              {0, "rename", "step_000001.tmp"}}) {
    SCOPED_TRACE(fmt::format("{} of {}", operation, file));
    const ProgramFolder folder;
    std::vector<Disk> disks(2);
    disks[rank] = failing(operation, file);
    const Ended ended = train_with(disks, folder.path("checkpoints"));
    EXPECT_THAT(ended.reasons, testing::Each(AllOf(HasSubstr(operation), HasSubstr(file), HasSubstr("says so"))));
    EXPECT_THAT(ended.left, IsEmpty());
  }
}

TEST(SavingBeside, WhatARuleThrowsKeepsTheCheckpointFromAppearing) {
  const ProgramFolder folder;
  const Ended refused = train_with({Disk(), Disk()}, folder.path("checkpoints"),
                                   {.before_commit = [] { fail("the folder is another job's"); }});
  EXPECT_THAT(refused.reasons, testing::Each(HasSubstr("the folder is another job's")));
  EXPECT_THAT(refused.left, testing::ElementsAre("step_000001.tmp")) << "which may be the other job's";
  const ProgramFolder other;
  const Ended unsynced = train_with({Disk(), Disk()}, other.path("checkpoints"),
                                    {.before_manifest = [] { fail("metrics cannot be synced"); }});
  EXPECT_THAT(unsynced.reasons, testing::Each(HasSubstr("metrics cannot be synced")));
  EXPECT_THAT(unsynced.left, IsEmpty());
}

TEST(SavingBeside, ADiskThatDoesNotAnswerEndsTheRun) {
  const ProgramFolder folder;
  const Disk silent([](std::string_view operation, const fs::path&) {
    if (operation == "sync") {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
  });
  const Ended ended = train_with({Disk(), silent}, folder.path("checkpoints"), {}, 0.3, 1 << 30);
  EXPECT_THAT(ended.reasons, testing::Each(AllOf(HasSubstr("rank 1, checkpoint of step 1"),
                                                 HasSubstr("within run.disk_timeout_seconds = 0.3 s"))));
}

// A run that ends by another error leaves no room taken on the disk.
TEST(SavingBeside, ARunThatFailsRemovesWhatItHasBegun) {
  const ProgramFolder folder;
  const Disk slow([](std::string_view operation, const fs::path&) {
    if (operation == "write") {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const Ended ended = train_with({slow, Disk()}, folder.path("checkpoints"), {}, 1800, 3);
  EXPECT_THAT(ended.reasons, testing::Each(HasSubstr("the run fails")));
  EXPECT_THAT(ended.left, IsEmpty());
}

// --- the thread

TEST(FileThread, ReturnsWhatItsWorkReturnsAndThrowsWhatItThrows) {
  FileThread thread(10, Disk());
  thread.start([] { return std::string("made"); });
  EXPECT_EQ(thread.take(), "made");
  EXPECT_FALSE(thread.busy());
  thread.start([]() -> std::string { throw ConfigError("refused"); });
  EXPECT_THROW(thread.take(), ConfigError);
  thread.start([] { return std::string("again"); });
  EXPECT_EQ(thread.take(), "again");
}

TEST(FileThread, WorkThatIsGivenUpIsToldByItsDisk) {
  std::string said;
  {
    std::atomic<bool> begun = false;
    FileThread thread(10, Disk());
    thread.start([&] {
      try {
        for (;;) {
          thread.disk().before("write", "some/file");
          begun = true;
        }
      } catch (const Error& error) {
        said = error.what();
      }
      return std::string();
    });
    while (!begun) {
      std::this_thread::yield();
    }
  }
  EXPECT_THAT(said, AllOf(HasSubstr("'some/file'"), HasSubstr("the run has ended")));
}

TEST(FileThread, WorkBeyondItsTimeIsNotWaitedFor) {
  FileThread thread(0.05, Disk());
  std::atomic<bool> on = true;
  thread.start([&] {
    while (on) {
      std::this_thread::yield();
    }
    return std::string();
  });
  EXPECT_THROW(thread.take(), DiskSilent);
  EXPECT_THROW(thread.busy(), DiskSilent);
  on = false;
}

}  // namespace
}  // namespace orthant::run_test::saving_beside_test
