// train.from: runs that begin with the weights of an import, in any layout; and what is refused before ranks start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "apps/pretrained/export.h"
#include "apps/pretrained/import.h"
#include "core/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::train_from_test {
namespace {

namespace fs = std::filesystem;
using launch_test::read_file;
using testing::AllOf;
using testing::HasSubstr;

void import_into(const fs::path& run, const fs::path& source) {
  import_model({.source = source, .output = run, .left_out = {}}, keys_of_plugin);
}

// Training from an import, as a user starts it: one rank and eight end with the same losses.
class Trained : public testing::TestWithParam<std::string> {};

TEST_P(Trained, EqualsOneRankUnderFourAxes) {
  run_test::ProgramFolder folder;
  import_into(folder.path("base"), paths::published_model(GetParam()));
  folder.write("c.toml",
               "extends = [\"base/model.toml\"]\n[run]\nsteps = 3\nlog_every = 1\n[train]\nfrom = \"base\"\n"
               "[data]\nsource = \"synthetic\"\nsequence_length = 16\n[batch]\nsequences = 8\nmicro_batch = 2\n"
               "[moe]\naux_loss = 0.01\n[optimizer]\nlr = 0.01\n");
  const auto losses = [&](const std::string& name, std::vector<std::string> layout) {
    layout.push_back("run.name=\"" + name + "\"");
    const auto result = folder.orthant(run_test::with_set({"launch", "c.toml"}, layout));
    EXPECT_EQ(result.code, 0) << result.error << result.output;
    EXPECT_THAT(result.output, HasSubstr("begins with the weights of"));
    return folder.losses(name);
  };
  const std::vector<double> one = losses("one", {});
  const std::vector<double> all = losses("all", {"plugins.data.size=2", "plugins.data.zero=3", "plugins.expert.size=2",
                                                 "plugins.pipeline.size=2", "plugins.tensor.size=2"});
  ASSERT_EQ(one.size(), all.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i], all[i], 2e-5) << i;
  }
  EXPECT_GT(one.front(), std::log(38.0)) << "weights of another model than random ones of ours";
  EXPECT_TRUE(fs::exists(folder.run("all") / "pretrained/receipt.json"));
  export_run({.run = folder.run("all"), .output = folder.path("out")}, keys_of_plugin);
  EXPECT_EQ(read_file(folder.path("out") / "config.json"),
            read_file(paths::published_model(GetParam()) / "config.json"));
}

INSTANTIATE_TEST_SUITE_P(Families, Trained,
                         testing::Values("mixtral", "qwen2_moe", "qwen3_moe_packed", "deepseek_v3", "glm4_moe",
                                         "gpt_oss"),
                         [](const auto& family) { return family.param; });

TEST(StartingWeights, OfAnotherModelAreRefusedBeforeRanksStart) {
  run_test::ProgramFolder folder;
  import_into(folder.path("base"), paths::published_model("mixtral"));
  const auto refused = [&](const std::string& model, const std::string& from) {
    folder.write("c.toml", "extends = [\"base/model.toml\"]\n[train]\nfrom = \"" + from +
                               "\"\n[data]\nsource = \"synthetic\"\nsequence_length = 16\n" + model);
    const auto result = folder.orthant({"train", "c.toml"});
    EXPECT_EQ(result.code, 78) << result.output;
    return result.error;
  };
  EXPECT_THAT(refused("[model]\nlayers = 3\n", "base"),
              AllOf(HasSubstr("c.toml:3:8"), HasSubstr("it has no 'model.layers.2.")));
  EXPECT_THAT(refused("[moe]\nd_expert = 12\n", "base"), HasSubstr("w1.weight' is [10, 24] there and [12, 24] here"));
  EXPECT_THAT(refused("[model]\nlayers = 1\n", "base"), HasSubstr("has no place here"));
  EXPECT_THAT(refused("", "nowhere"), HasSubstr("does not exist"));
  EXPECT_THAT(refused("", "."), HasSubstr("no complete checkpoint"));
}

TEST(StartingWeights, OfAGateThatIsNotThereAreRefused) {
  run_test::ProgramFolder folder;
  import_into(folder.path("base"), paths::published_model("deepseek_v3"));
  folder.write("c.toml",
               "extends = [\"base/model.toml\"]\n[train]\nfrom = \"base\"\n[data]\nsource = \"synthetic\"\n"
               "sequence_length = 16\n[moe]\nrouter = \"topk\"\n");
  const auto result = folder.orthant({"train", "c.toml"});
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error, AllOf(HasSubstr("'gate/"), HasSubstr("has no place here")));
}

TEST(StartingWeights, AreNotNeededToGoOn) {
  run_test::ProgramFolder folder;
  import_into(folder.path("base"), paths::published_model("mixtral"));
  folder.write("c.toml",
               "extends = [\"base/model.toml\"]\n[run]\nsteps = 2\nname = \"r\"\n"
               "[train]\nfrom = \"base/checkpoints/step_000000/\"\n[data]\nsource = \"synthetic\"\n"
               "sequence_length = 16\n[batch]\nsequences = 2\n");
  const auto begun = folder.orthant({"train", "c.toml"});
  ASSERT_EQ(begun.code, 0) << begun.error;
  EXPECT_TRUE(fs::exists(folder.run() / "pretrained/receipt.json")) << "a folder may be named with a slash behind it";
  fs::remove_all(folder.path("base/checkpoints"));
  const auto on = folder.orthant(run_test::with_set({"train", "c.toml", "--resume", "auto"}, {"run.steps=3"}));
  EXPECT_EQ(on.code, 0) << on.error;
  EXPECT_THAT(on.output, HasSubstr("resumed from"));
  // Where there is nothing to go on from, they are.
  const auto anew = folder.orthant(
      run_test::with_set({"train", "c.toml", "--resume", "auto"}, {"run.steps=3", "run.name=\"other\""}));
  EXPECT_EQ(anew.code, 78) << anew.output;
  EXPECT_THAT(anew.error, HasSubstr("does not exist"));
}

}  // namespace
}  // namespace orthant::train_from_test
