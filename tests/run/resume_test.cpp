// Going on from a checkpoint: bitwise in the same layout; from any layout's checkpoint in any other.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/data/source.h"
#include "core/run/saving.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/thread_world.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::resume_test {
namespace {

namespace fs = std::filesystem;
using orthant::launch_test::read_file;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Resume : public testing::Test {
 protected:
  Resume() { folder_.write("c.toml", tiny_config({2, 2})); }
  Result train(const std::vector<std::string>& values, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"train", "c.toml"});
    return folder_.orthant(with_set(words, values));
  }
  ProgramFolder folder_;
};

// A hook that lowers the learning rate at each step remembers where it was.
TEST_F(Resume, AHookGoesOnWhereItWas) {
  folder_.write("c.toml", tiny_config({2, 2}) + fmt::format("[plugins.spike_watcher]\npath = \"{}\"\nabove = 0.5\n",
                                                            paths::out_of_tree("spike_watcher")));
  ASSERT_EQ(train({"run.name=\"whole\""}).code, 0);
  const Result second = train({"run.name=\"rest\""}, {"--resume", folder_.checkpoint(4, "whole").string()});
  ASSERT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(differences(folder_.checkpoint(8, "whole"), folder_.checkpoint(8, "rest")), IsEmpty());
  const auto last = [&](const std::string& name) {
    return nlohmann::json::parse(lines_of(folder_.run(name) / "metrics.jsonl").back());
  };
  EXPECT_EQ(last("whole").at("spike_watcher.spikes"), 7);
  EXPECT_EQ(last("rest").at("spike_watcher.spikes"), 7);
  EXPECT_EQ(last("whole").at("lr"), last("rest").at("lr"));
  // Without the plugin its changes end, and that is said.
  folder_.write("c.toml", tiny_config({2, 2}));
  const Result without = train({"run.name=\"without\""}, {"--resume", folder_.checkpoint(4, "whole").string()});
  EXPECT_EQ(without.code, 0);
  EXPECT_THAT(without.error, HasSubstr("with hooks that no plugin brings now, their changes end here: spike_watcher"));
}

// Dropout, jitter and gshard's second choice draw random numbers in each of these; the text has 14 steps an epoch, so
// that steps 4 to 8 lie within one and step 16 beyond it.
TEST_F(Resume, TheSameLayoutGoesOnBitwise) {
  const std::vector<std::vector<std::string>> variants = {
      {"moe.router=\"gshard\""},
      {"moe.router=\"switch\"", "moe.top_k=1", "run.steps=16"},
      {"moe.router=\"topk\"", "run.dtype=\"bf16\"", "batch.micro_batch=1"},
      {"optimizer.name=\"sgd\"", "plugins.data.size=4", "plugins.expert.size=2"},
      {"plugins.data.size=1", "plugins.expert.size=1", "data.documents=\"packed\"", "data.separator=\"\\n\""},
  };
  for (std::size_t i = 0; i < variants.size(); ++i) {
    SCOPED_TRACE(variants[i][0]);
    const std::string whole = fmt::format("whole{}", i), rest = fmt::format("rest{}", i);
    std::vector<std::string> values = variants[i];
    values.push_back("run.name=\"" + whole + "\"");
    const Result first = train(values);
    ASSERT_EQ(first.code, 0) << first.error;
    values.back() = "run.name=\"" + rest + "\"";
    const Result second = train(values, {"--resume", folder_.checkpoint(4, whole).string()});
    ASSERT_EQ(second.code, 0) << second.error;

    const int last = i == 1 ? 16 : 8;
    EXPECT_THAT(differences(folder_.checkpoint(last, whole), folder_.checkpoint(last, rest)), IsEmpty());
    const std::vector<double> all = folder_.losses(whole);
    EXPECT_EQ(folder_.losses(rest), std::vector<double>(all.begin() + 4, all.end()));
    // The comparison means something: training did change every weight since.
    EXPECT_GT(differences(folder_.checkpoint(4, whole), folder_.checkpoint(last, rest)).size(), 10u);
  }
}

TEST_F(Resume, AnotherLayoutGoesOnAlike) {
  ASSERT_EQ(train({"run.name=\"whole\""}).code, 0);
  const Result other = train({"run.name=\"rest\"", "plugins.data.size=4", "plugins.expert.size=1"},
                             {"--resume", folder_.checkpoint(4, "whole").string()});
  ASSERT_EQ(other.code, 0) << other.error;
  const std::vector<double> all = folder_.losses("whole"), rest = folder_.losses("rest");
  ASSERT_EQ(rest.size(), 4u);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    EXPECT_NEAR(rest[i], all[i + 4], 1e-5 * all[i + 4]);
  }
}

TEST_F(Resume, AnotherModelIsRefusedByName) {
  ASSERT_EQ(train({}).code, 0);
  const std::string from = folder_.checkpoint(8).string();
  const Result wider = train({"model.d_model=32", "run.name=\"w\""}, {"--resume", from});
  EXPECT_EQ(wider.code, 78);
  EXPECT_THAT(wider.error, HasSubstr("--resume " + from + " is of another model"));
  EXPECT_THAT(wider.error, HasSubstr("embed_tokens.weight' is [256, 16] there and [256, 32] here"));
  const Result deeper = train({"model.layers=3", "run.name=\"w\""}, {"--resume", from});
  EXPECT_EQ(deeper.code, 78);
  EXPECT_THAT(deeper.error, HasSubstr("has no 'model.layers.2."));
  const Result shallower = train({"model.layers=1", "run.name=\"w\""}, {"--resume", from});
  EXPECT_EQ(shallower.code, 78);
  EXPECT_THAT(shallower.error, HasSubstr("'model.layers.1.block_sparse_moe.experts.0.w1.weight' has no place here"));
  const Result simpler = train({"optimizer.name=\"sgd\"", "run.name=\"w\""}, {"--resume", from});
  EXPECT_EQ(simpler.code, 78);
  EXPECT_THAT(simpler.error, HasSubstr("has 'optimizer/moment2/"));
  EXPECT_FALSE(fs::exists(folder_.run("w"))) << "no rank has started";
  const Result nowhere = train({"run.name=\"n\""}, {"--resume", "/nowhere/step_000001"});
  EXPECT_EQ(nowhere.code, 78);
  EXPECT_THAT(nowhere.error, HasSubstr("/nowhere/step_000001"));
  EXPECT_FALSE(fs::exists(folder_.run("n"))) << "no rank has started";
  EXPECT_EQ(train({"run.name=\"n\""}, {"--resume", "auto:/nowhere/step_000001"}).code, 78);
  EXPECT_THAT(nowhere.error, Not(HasSubstr("internal error")));
}

TEST_F(Resume, ADamagedCheckpointIsPassedOverForAnOlderOne) {
  ASSERT_EQ(train({}).code, 0);
  const auto undamaged = gathered(folder_.checkpoint(8));
  {
    std::fstream file(folder_.checkpoint(8) / "rank_00001.safetensors", std::ios::in | std::ios::out);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  }
  const Result resumed = train({}, {"--resume", "auto"});
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.error, HasSubstr("checkpoint passed over: "));
  EXPECT_THAT(resumed.error, HasSubstr("step_000008"));
  EXPECT_THAT(resumed.output, HasSubstr("after step 4"));
  EXPECT_EQ(gathered(folder_.checkpoint(8)), undamaged);  // made again
}

TEST_F(Resume, WithoutACheckpointARunStartsAnew) {
  const Result fresh = train({"run.steps=2"}, {"--resume", "auto"});
  ASSERT_EQ(fresh.code, 0) << fresh.error;
  EXPECT_THAT(fresh.output, HasSubstr("no checkpoint to resume from under runs/r/checkpoints: starting at step 1"));
  const Result again = train({"run.steps=2"}, {"--resume", "auto"});  // there is nothing left to do
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_THAT(again.output, HasSubstr("nothing is left to do: run.steps is 2, and 2 are done"));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(2)));
}

// What fits by its shapes may still be another model: it is trained on, but not in silence.
TEST_F(Resume, OtherSettingsAreNamed) {
  ASSERT_EQ(train({}).code, 0);
  const Result longer = train({"run.steps=9", "run.log_every=2"}, {"--resume", "auto"});
  EXPECT_THAT(longer.error, HasSubstr("run.steps = 9 (was 8), which moves the learning rate of step 9"));
  const Result other = train({"run.steps=10", "model.heads=4", "run.seed=9"}, {"--resume", "auto"});
  ASSERT_EQ(other.code, 0) << other.error;
  EXPECT_THAT(other.error, HasSubstr("model.heads = 4 (was 2)"));
  EXPECT_THAT(other.error, HasSubstr("run.seed = 9 (was "));
  EXPECT_THAT(other.error, Not(HasSubstr("model.d_model")));
}

TEST_F(Resume, AnotherWeightOfTokensAheadIsNamed) {
  ASSERT_EQ(train({"model.mtp_depth=1"}).code, 0);
  const Result other = train({"model.mtp_depth=1", "train.mtp_weight=0.1", "run.steps=9"}, {"--resume", "auto"});
  ASSERT_EQ(other.code, 0) << other.error;
  EXPECT_THAT(other.error, HasSubstr("train.mtp_weight = 0.1 (was 0.3)"));
}

TEST_F(Resume, WhatDoesNotFitIsToldWithTheSettingsThatChanged) {
  ASSERT_EQ(train({"lora.rank=2", "lora.targets=[\"*.q_proj.weight\"]"}).code, 0);
  const Result other = train({"lora.rank=3", "lora.targets=[\"*.q_proj.weight\"]"}, {"--resume", "auto"});
  EXPECT_EQ(other.code, 78);
  EXPECT_THAT(other.error, Not(HasSubstr("[r0]"))) << "no rank has started";
  EXPECT_THAT(other.error, HasSubstr("--resume auto: runs/r/checkpoints/step_000008 is of another model"));
  EXPECT_THAT(other.error, HasSubstr("to begin anew, leave --resume out"));
  EXPECT_THAT(other.error, HasSubstr("lora.rank = 3 (was 2)"));
  EXPECT_THAT(other.error, HasSubstr("q_proj.lora_A.weight"));
}

TEST_F(Resume, ARunWithAnEarlierOneOfItsNameStartsFromAnotherRunsCheckpoint) {
  ASSERT_EQ(train({"run.name=\"source\""}).code, 0);
  ASSERT_EQ(train({"run.steps=2"}).code, 0);
  const std::string from = folder_.checkpoint(4, "source").string();
  const Result started = train({}, {"--resume", from});
  ASSERT_EQ(started.code, 0) << started.error;
  EXPECT_TRUE(fs::exists(folder_.checkpoint(2, "r.1")));  // what was there is another run's
  EXPECT_THAT(differences(folder_.checkpoint(8), folder_.checkpoint(8, "source")), IsEmpty());
  // What a restart asks for: this run's newest, else the one it started from.
  const Result own = train({"run.steps=9"}, {"--resume", "auto:" + from});
  EXPECT_THAT(own.output, HasSubstr("after step 8"));
  const Result given = train({"run.name=\"fresh\""}, {"--resume", "auto:" + from});
  EXPECT_THAT(given.output, HasSubstr("after step 4"));
}

// `auto` is a word of --resume; a folder's name may begin with it.
TEST_F(Resume, APathMayBeginWithAuto) {
  const std::vector<std::string> in_autoruns = {"run.directory=\"autoruns\"", "run.checkpoint_every=2"};
  ASSERT_EQ(train(in_autoruns).code, 0);
  const std::string from = "autoruns/r/checkpoints/step_000004";
  // In its own folder the later ones make way.
  const Result back = train({"run.directory=\"autoruns\"", "run.steps=5"}, {"--resume", from});
  ASSERT_EQ(back.code, 0) << back.error;
  EXPECT_THAT(back.output, HasSubstr("after step 4"));
  EXPECT_THAT(back.output, HasSubstr("checkpoints of later steps are kept in autoruns/r/checkpoints.1"));
  EXPECT_FALSE(fs::exists(folder_.path("autoruns/r/checkpoints/step_000008")));
  // In another folder it is a new run, and what was there makes way.
  ASSERT_EQ(train({"run.steps=2"}).code, 0);
  const Result other = train({}, {"--resume", from});
  ASSERT_EQ(other.code, 0) << other.error;
  EXPECT_THAT(other.output, HasSubstr("after step 4"));
  EXPECT_THAT(other.error, HasSubstr("an earlier run of this name is kept in runs/r.1"));
}

TEST_F(Resume, FromAnOlderCheckpointTheLaterOnesAreKeptApart) {
  ASSERT_EQ(train({"run.checkpoint_every=2"}).code, 0);
  const Result back = train({"run.steps=5"}, {"--resume", folder_.checkpoint(4).string()});
  ASSERT_EQ(back.code, 0) << back.error;
  EXPECT_THAT(back.output, HasSubstr("checkpoints of later steps are kept in runs/r/checkpoints.1"));
  EXPECT_TRUE(fs::exists(folder_.run() / "checkpoints.1/step_000008/manifest.json"));
  EXPECT_FALSE(fs::exists(folder_.checkpoint(8)));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(2)));
  const Result next = train({"run.steps=6"}, {"--resume", "auto"});
  EXPECT_THAT(next.output, HasSubstr("after step 5"));
  EXPECT_FALSE(fs::exists(folder_.run("r.1")));
}

// Loads `from` (nothing: the initial weights) in a layout of threads, trains `steps`, saves under `root`.
fs::path pass_through(const Config& config, const fs::path& from, int steps, const fs::path& root) {
  fs::path saved;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    const auto device = make_device("cpu", 1);
    const auto stream = device->make_main_stream();
    const auto source = make_batch_source(config.settings);
    Session session(config);
    session.plan(communicator.rank(), &communicator, device.get());
    Group& world = session.mesh().world_group("test");
    Trainer trainer(session.plan(), *stream, *source);
    if (!from.empty()) {
      load_checkpoint(CheckpointReader(from), session.plan(), trainer.parameters(), *stream);
    }
    for (int step = 0; step < steps; ++step) {
      trainer.step(step);
    }
    const fs::path folder =
        save_checkpoint(root, 1, session.plan(), trainer.parameters(), {}, {communicator, world}, *stream);
    if (world.rank() == 0) {
      const std::lock_guard lock(mutex);
      saved = folder;
    }
  });
  return saved;
}

TEST_F(Resume, EveryLayoutReadsEveryLayout) {
  const std::vector<Layout> layouts = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}};
  auto config_of = [&](Layout layout, int seed) {
    folder_.write("layout.toml", tiny_config(layout));
    return load_config(folder_.path("layout.toml").string(), {fmt::format("run.seed={}", seed)}, keys_of_plugin,
                       kinds_of_plugin);
  };
  for (const Layout& a : layouts) {
    const fs::path from = pass_through(config_of(a, 1), {}, 2, folder_.path("from"));
    for (const Layout& b : layouts) {
      SCOPED_TRACE(fmt::format("data {} expert {} to data {} expert {}", a.data, a.expert, b.data, b.expert));
      // Other initial weights than the saved run's, so that whatever is not loaded shows.
      const fs::path to = pass_through(config_of(b, 2), from, 0, folder_.path("to"));
      EXPECT_EQ(CheckpointReader(to).world(), b.data);
      EXPECT_THAT(differences(from, to), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace orthant::run_test::resume_test
