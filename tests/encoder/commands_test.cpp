// The commands on an encoder's run: what it leaves, how `eval` and `embed` read it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/safetensors.h"
#include "tests/encoder/texts.h"
#include "tests/support/program.h"

namespace orthant::test::encoder_commands_test {
namespace {

using nlohmann::json;
using run_test::ProgramFolder;
using run_test::Result;
using testing::HasSubstr;

std::string toml(const std::string& text, const std::string& more) {
  return fmt::format(R"([run]
name = "r"
steps = 30
log_every = 1
validate_every = 30
[data]
source = "masked"
path = "{}"
sequence_length = 16
validation_sequences = 1000000
[batch]
sequences = 16
[model]
kind = "bert"
layers = 2
d_model = 32
heads = 4
vocab_size = 260
[optimizer]
lr = 0.01
[plugins.encoder]
{})",
                     text, more);
}

// A run's validation and eval of the same tokens say the same.
TEST(EvalOfAnEncoder, IsItsValidation) {
  ProgramFolder folder;
  const std::string held_out = words(1500);
  folder.write("train.txt", words(4000));
  folder.write("held_out.txt", held_out);
  folder.write("c.toml", toml("train.txt", "[plugins.data]\nsize = 2\n"));
  const Result trained = folder.orthant({"launch", "c.toml", "--set", "data.validation_path=[\"held_out.txt\"]",
                                         "--set", "data.validation_fraction=0.0"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::vector<std::string> lines = run_test::lines_of(folder.path("runs/r/metrics.jsonl"));
  const json first = json::parse(lines.front()), last = json::parse(lines.back());
  EXPECT_GT(last.at("masked_accuracy").get<double>(), first.at("masked_accuracy").get<double>() + 0.05);
  const Result result = folder.orthant({"eval", "runs/r", "held_out.txt", "--json"});
  ASSERT_EQ(result.code, 0) << result.error;
  const json measured = json::parse(result.output).at("files").at(0);
  EXPECT_NEAR(measured.at("loss").get<double>(), last.at("validation_loss").get<double>(), 1e-5);
  EXPECT_NEAR(measured.at("masked_accuracy").get<double>(), last.at("validation_masked_accuracy").get<double>(), 1e-6);
  const Result refused = folder.orthant({"eval", "runs/r", "held_out.txt", "--length", "8"});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.error, HasSubstr("a model of kind \"bert\" is measured by its own objective"));
}

TEST(Embeddings, AreOfEachTextAlone) {
  ProgramFolder folder;
  folder.write("train.txt", words(4000));
  folder.write("c.toml", toml("train.txt", ""));
  ASSERT_EQ(folder.orthant({"train", "c.toml", "--set", "run.steps=2"}).code, 0);
  folder.write("a.txt", "hello world\nsmall\n");
  folder.write("b.jsonl", "{\"text\": \"small\"}\n{\"text\": \"hello world\"}\n{\"text\": \"another one of those\"}\n");
  const auto lines = [&](const std::vector<std::string>& words_of_command) {
    const Result result = folder.orthant(words_of_command);
    EXPECT_EQ(result.code, 0) << result.error;
    std::vector<json> all;
    std::istringstream in(result.output);
    for (std::string line; std::getline(in, line);) {
      all.push_back(json::parse(line));
    }
    return all;
  };
  const std::vector<json> a = lines({"embed", "runs/r", "--texts", "a.txt"});
  const std::vector<json> b = lines({"embed", "runs/r", "--texts", "b.jsonl"});
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(b.size(), 3u);
  EXPECT_EQ(a[0].at("text"), "hello world");
  EXPECT_EQ(a[0].at("embedding").size(), 32u);
  for (std::size_t c = 0; c < 32; ++c) {  // in whatever company
    EXPECT_NEAR(a[0].at("embedding")[c].get<double>(), b[1].at("embedding")[c].get<double>(), 1e-6);
    EXPECT_NEAR(a[1].at("embedding")[c].get<double>(), b[0].at("embedding")[c].get<double>(), 1e-6);
  }
  EXPECT_NE(a[0].at("embedding"), a[1].at("embedding"));
  const std::vector<json> cls = lines({"embed", "runs/r", "--texts", "a.txt", "--pool", "cls"});
  EXPECT_NE(cls[0].at("embedding"), a[0].at("embedding"));
  ASSERT_EQ(folder.orthant({"embed", "runs/r", "--texts", "a.txt", "-o", "e.safetensors"}).code, 0);
  const SafetensorsReader file(folder.path("e.safetensors"));
  EXPECT_EQ(file.at("embedding").sizes, (std::vector<std::int64_t>{2, 32}));
  folder.write("d.toml", R"([run]
name = "d"
steps = 1
[model]
layers = 1
d_model = 16
heads = 2
[data]
source = "synthetic"
sequence_length = 8
)");
  ASSERT_EQ(folder.orthant({"train", "d.toml"}).code, 0);
  EXPECT_THAT(folder.orthant({"embed", "runs/d", "--texts", "a.txt"}).error, HasSubstr("embed knows encoders"));
}

// A classifier that begins with a masked model: all of it but the head, which is of another shape.
TEST(FineTuning, BeginsWithAMaskedModelsWeights) {
  ProgramFolder folder;
  folder.write("train.txt", words(4000));
  std::string rows;
  for (int i = 0; i < 100; ++i) {
    rows += fmt::format("{{\"text\": \"{}\", \"label\": {}}}\n", i % 2 == 0 ? "a good one" : "not for me", i % 2);
  }
  folder.write("rows.jsonl", rows);
  folder.write("c.toml", toml("train.txt", ""));
  ASSERT_EQ(folder.orthant({"train", "c.toml", "--set", "run.steps=3"}).code, 0);
  const std::vector<std::string> classifier = {"train", "c.toml",
                                               "--set", "run.name=classifier",
                                               "--set", "run.steps=1",
                                               "--set", "data.source=labelled",
                                               "--set", "data.path=rows.jsonl",
                                               "--set", "model.classes=2",
                                               "--set", "train.from=runs/r",
                                               "--set", "optimizer.lr=1e-30"};
  const Result refused = folder.orthant(classifier);
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.error, HasSubstr("'lm_head.weight' is [260, 32] there and [2, 32] here"));
  std::vector<std::string> anew = classifier;
  anew.insert(anew.end(), {"--set", "train.anew=[\"lm_head.*\"]"});
  const Result trained = folder.orthant(anew);
  ASSERT_EQ(trained.code, 0) << trained.error;
  const CheckpointReader before(folder.path("runs/r/checkpoints/step_000003")),
      after(folder.path("runs/classifier/checkpoints/step_000001"));
  const auto values = [](const CheckpointReader& reader, const std::string& name) {
    const Shape shape = reader.info(name).shape;
    std::vector<float> all(static_cast<std::size_t>(shape.elements()));

    reader.read(name, {0, 0}, {shape[0], shape[1]}, reinterpret_cast<std::byte*>(all.data()));
    return all;
  };
  for (const char* name : {"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "head.dense.weight"}) {
    EXPECT_EQ(values(before, name), values(after, name)) << name;
  }
  EXPECT_EQ(after.info("lm_head.weight").shape, (Shape{2, 32}));
  // What has begun anew is read as it stands from then on.
  const Result measured = folder.orthant({"eval", "runs/classifier", "rows.jsonl"});
  EXPECT_EQ(measured.code, 0) << measured.error;
  EXPECT_THAT(measured.output, HasSubstr("class_accuracy"));
}

}  // namespace
}  // namespace orthant::test::encoder_commands_test
