// A kind of model of one's own, out of tree: what it computes, what a pipeline's cut sends of it, and who refuses it.
// Layouts: parts_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/checkpoint/checkpoint.h"
#include "core/dry_run/planning.h"
#include "core/run/remembered_settings.h"
#include "core/run/resumed.h"
#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::model_test {
namespace {

using run_test::ProgramFolder;
using run_test::Result;
using test::experiment;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kind = R"(model.kind="reminded")";

std::string reminded(const std::string& keys = "") {
  return fmt::format("[plugins.reminded]\npath = \"{}\"\n{}", paths::out_of_tree("reminded"), keys);
}

TEST(OutOfTreeModel, WithoutReminderItIsADecoder) {
  test::OneRank plain(experiment({"model.layers=3"})), rank(experiment({kind, "model.layers=3"}, reminded()));
  const StepReport expected = plain->trainer().gradients(0);
  EXPECT_GT(std::abs(rank->trainer().gradients(0).loss - expected.loss), 1e-5) << "the reminder is seen";
  for (const char* block : {"1", "2"}) {
    const std::string name = fmt::format("model.layers.{}.reminder.weight", block);
    EXPECT_EQ(rank->weight(name).size(), 16u * 8u);
    rank->set_weight(name, std::vector<float>(16 * 8, 0));
  }
  EXPECT_EQ(rank->trainer().gradients(0).loss, expected.loss);
  const std::vector<float> first = rank->gradient("model.layers.0.reminder.weight");
  EXPECT_TRUE(std::all_of(first.begin(), first.end(), [](float x) { return x == 0; })) << "nobody sees what it makes";
  EXPECT_EQ(rank->gradient("model.layers.0.self_attn.q_proj.weight"),
            plain->gradient("model.layers.0.self_attn.q_proj.weight"));
}

TEST(OutOfTreeModel, Learns) {
  test::OneRank rank(experiment({kind, "optimizer.lr=0.01"}, reminded()));
  const double before = rank->trainer().validate();
  for (int step = 0; step < 30; ++step) {
    rank->trainer().step(step);
  }
  EXPECT_LT(rank->trainer().validate(), before - 0.05);
}

// Bytes of the messages that the first stage sends to the second in one step, by their size.
std::vector<std::int64_t> sent(const std::string& of_kind, const std::string& plugins, int layers) {
  const Config config = experiment(
      {fmt::format("model.kind=\"{}\"", of_kind), fmt::format("model.layers={}", layers), "batch.micro_batch=8"},
      "[plugins.pipeline]\nsize = 2\n" + plugins);
  std::vector<std::int64_t> bytes;
  for (const CollectiveCall& call : plan_rank(config, 0).step.calls) {
    if (call.operation == std::string("send")) {
      bytes.push_back(call.bytes_sent);
    }
  }
  return bytes;
}

TEST(OutOfTreeModel, ACutSendsWhatIsAlive) {
  constexpr std::int64_t x = 8 * 12 * 16 * 4, numbers = 8 * 12 * 5 * 4;
  EXPECT_THAT(sent("decoder", "", 4), testing::ElementsAre(x));
  EXPECT_THAT(sent("reminded", reminded("width = 5\n"), 4), testing::ElementsAre(x, numbers));
}

TEST(OutOfTreeModel, RefusesByItsKeys) {
  EXPECT_THAT(test::refusal({R"(model.kind="remindd")"}, reminded()),
              AllOf(HasSubstr("[model] kind: there is no model \"remindd\""), HasSubstr("did you mean \"reminded\"?")));
  EXPECT_THAT(test::refusal({kind}, ""), HasSubstr("known are \"decoder\""));
  EXPECT_THAT(test::refusal({kind, "model.layers=1"}, reminded()),
              AllOf(HasSubstr("[model] layers: kind \"reminded\" reminds all blocks but the first"),
                    HasSubstr("write layers = 2 at least")));
  EXPECT_THAT(test::refusal({kind}, reminded("fault = \"same_name\"\n")),
              HasSubstr("[model] kind: \"reminded\": link 'layer 0' passes on 'x' with 8 columns"));
}

class ModelRuns : public testing::Test {
 protected:
  ModelRuns() {
    const std::string tiny = run_test::tiny_config({1, 1});
    folder_.write("plain.toml", tiny);
    folder_.write("c.toml", tiny + reminded());
  }
  Result orthant(std::vector<std::string> words, std::vector<std::string> set) const {
    return folder_.orthant(run_test::with_set(std::move(words), set));
  }
  ProgramFolder folder_;
};

TEST_F(ModelRuns, GoOnAsTheKindThatTheyWere) {
  const Result first = orthant({"train", "c.toml"}, {kind, "run.steps=4"});
  ASSERT_EQ(first.code, 0) << first.error;
  const Result other = orthant({"train", "plain.toml", "--resume", "auto"}, {"run.steps=6"});
  EXPECT_EQ(other.code, 78);
  EXPECT_THAT(other.error, HasSubstr("is of a model of kind \"reminded\", and [model] kind is \"decoder\""));
  const Result same = orthant({"train", "c.toml", "--resume", "auto"}, {kind, "run.steps=6"});
  EXPECT_EQ(same.code, 0) << same.error;
  EXPECT_THAT(same.error, Not(HasSubstr("model.kind")));
}

// Where both have the same parameters only the name tells them apart. Older checkpoints say none.
TEST(KindOfACheckpoint, IsThatOfTheRun) {
  Config config = experiment();
  const launch_test::TemporaryFolder folder;
  const auto saved_with = [&](const std::string& settings) {
    run_threads(1, [&](Communicator& communicator) {
      test::TestRank rank(config, communicator);
      Plan& plan = rank.session().plan();
      save_checkpoint(folder.path(), 1, plan, rank.trainer().parameters(), {{"settings", settings}},
                      {communicator, plan.mesh().world_group("save")}, rank.stream());
    });
    return CheckpointReader(checkpoint_folder(folder.path(), 1));
  };
  const std::string now = remembered_settings(config);
  EXPECT_NO_THROW(require_same_kind(saved_with(now), config.settings));
  const std::string key = R"("model.kind":"\"decoder\"")";
  ASSERT_THAT(now, HasSubstr(key));
  std::string other = now, older = now;
  other.replace(now.find(key), key.size(), R"("model.kind":"\"another\"")");
  EXPECT_THAT(
      [&] { require_same_kind(saved_with(other), config.settings); },
      testing::ThrowsMessage<Error>(HasSubstr("is of a model of kind \"another\", and [model] kind is \"decoder\"")));
  older.erase(now.find(key), key.size() + 1);
  const CheckpointReader before = saved_with(older);
  EXPECT_NO_THROW(require_same_kind(before, config.settings));
  config.settings.model.kind = "reminded";
  EXPECT_THAT([&] { require_same_kind(before, config.settings); },
              testing::ThrowsMessage<Error>(HasSubstr("of kind \"decoder\"")));
}

TEST_F(ModelRuns, CommandsThatKnowADecoderAloneSaySo) {
  ASSERT_EQ(orthant({"train", "c.toml"}, {kind, "run.steps=4"}).code, 0);
  const std::string run = folder_.run().string(), refused = "knows models of kind \"decoder\" alone";
  const Result generated = folder_.orthant({"generate", run, "--prompt", "a"});
  EXPECT_NE(generated.code, 0);
  EXPECT_THAT(generated.error, AllOf(HasSubstr("[model] kind: "), HasSubstr(refused), HasSubstr("\"reminded\"")));
  const Result exported = folder_.orthant({"export", run, "-o", folder_.path("out").string()});
  EXPECT_EQ(exported.code, 0) << exported.error;
  EXPECT_THAT(exported.output + exported.error, AllOf(HasSubstr("no twin in transformers: model.kind = \"reminded\""),
                                                      HasSubstr("transformers will not load it")));
  const Result measured = folder_.orthant({"eval", run, folder_.path("text.txt").string()});
  EXPECT_EQ(measured.code, 0) << measured.error;
  EXPECT_THAT(measured.output, HasSubstr("text.txt: loss "));
  const Result student = orthant({"train", "plain.toml"}, {"run.name=s", "distil.teacher=" + run});
  EXPECT_EQ(student.code, 78);
  EXPECT_THAT(student.error, AllOf(HasSubstr("[distil] teacher: "), HasSubstr("is a model of kind \"reminded\"")));
}

}  // namespace
}  // namespace orthant::model_test
