// The tokenizer travels with its run: into the run's folder, through eval and export, and no other one goes on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::tokenizer_test {
namespace {

namespace fs = std::filesystem;
using orthant::launch_test::read_file;
using testing::AllOf;
using testing::HasSubstr;

class RunTokenizer : public testing::Test {
 protected:
  RunTokenizer() {
    const auto wheels = nlohmann::json::parse(read_file(paths::source("tests/tokenizer/wheels.json")));
    tokenizer_ = wheels["kinds"]["gpt2"]["tokenizer"];
    folder_.write("t/tokenizer.json", tokenizer_.dump());
    folder_.write("c.toml", tiny_config({2, 2}) + "[optimizer]\nlr = 0.01\n");
  }
  Result train(const std::vector<std::string>& values, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"train", "c.toml", "--set", "model.vocab_size=0"});
    return folder_.orthant(with_set(words, values));
  }
  nlohmann::json tokenizer_;
  ProgramFolder folder_;
};

TEST_F(RunTokenizer, IsKeptIsReadByEvalIsExportedAndIsTheOnlyOneThatGoesOn) {
  const std::vector<std::string> own = {"data.tokenizer=t/tokenizer.json", "run.validate_every=0"};
  for (const char* command : {"config", "plan"}) {
    const Result looked = folder_.orthant(with_set({command, "c.toml", "--set", "model.vocab_size=0"}, own));
    EXPECT_EQ(looked.code, 0) << looked.error;
    EXPECT_FALSE(fs::exists(folder_.path("runs")));
  }
  const Result trained = train(own);
  ASSERT_EQ(trained.code, 0) << trained.error;
  const fs::path kept = folder_.run() / "tokenizer" / "tokenizer.json";
  EXPECT_TRUE(read_file(kept) == tokenizer_.dump());
  const auto vocabulary = load_tokenizer(kept.string())->vocabulary();
  EXPECT_THAT(read_file(folder_.run() / "config.resolved.toml"),
              HasSubstr(fmt::format("vocab_size = {} ", vocabulary)));

  const Result eval = folder_.orthant({"eval", "runs/r", "text.txt"});
  EXPECT_EQ(eval.code, 0) << eval.error;
  EXPECT_THAT(eval.output, HasSubstr("runs/r/tokenizer"));
  const Result exported = folder_.orthant({"export", "runs/r", "-o", "out"});
  EXPECT_EQ(exported.code, 0) << exported.error;
  EXPECT_TRUE(read_file(folder_.path("out/tokenizer.json")) == tokenizer_.dump());

  const Result on = train({"data.tokenizer=t/tokenizer.json", "run.steps=9"}, {"--resume", "auto"});
  EXPECT_EQ(on.code, 0) << on.error;
  auto merges = tokenizer_;
  std::swap(merges["model"]["merges"][0], merges["model"]["merges"][1]);
  folder_.write("t/tokenizer.json", merges.dump());
  const Result other = train({"data.tokenizer=t/tokenizer.json", "run.steps=10"}, {"--resume", "auto"});
  EXPECT_EQ(other.code, 78);
  EXPECT_THAT(other.error, AllOf(HasSubstr("the run was trained with the tokenizer"), HasSubstr("start another run")));
  const Result bytes = train({fmt::format("model.vocab_size={}", vocabulary), "run.steps=10"}, {"--resume", "auto"});
  EXPECT_EQ(bytes.code, 78);
  EXPECT_THAT(bytes.error, HasSubstr("0000000000000000 now (bytes)"));
  const Result begun = train({fmt::format("model.vocab_size={}", vocabulary), "run.name=n", "train.from=runs/r"});
  EXPECT_EQ(begun.code, 0) << begun.error;
  EXPECT_THAT(begun.error, HasSubstr("train.from: the weights are of the tokenizer"));
  const Result again = train({"data.tokenizer=runs/r/tokenizer", "run.steps=10"}, {"--resume", "auto"});
  EXPECT_EQ(again.code, 0) << again.error;
}

// Validation losses in bits per byte of the text, so that runs with other tokenizers compare: as eval counts them.
TEST_F(RunTokenizer, ValidationLossesAreToldInBitsPerByteToo) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += fmt::format("line {} of the held-out text, and {}\n", i, i * i);
  }
  folder_.write("held.txt", text);
  const std::vector<std::string> sets = {"data.validation_path=[\"held.txt\"]", "data.validation_fraction=0",
                                         "run.steps=2", "run.validate_every=2", "data.validation_sequences=1000"};
  const auto last = [&](const std::string& name) {
    return nlohmann::json::parse(lines_of(folder_.run(name) / "metrics.jsonl").back());
  };
  std::vector<std::string> own = sets;
  own.insert(own.end(), {"data.tokenizer=t/tokenizer.json", "run.name=own"});
  ASSERT_EQ(train(own).code, 0);
  const nlohmann::json line = last("own");
  const auto ids = load_tokenizer(folder_.path("t").string())->encode(text);
  // The first token is predicted from nothing, and a rest that fills no sequence is not measured: a token's bytes more
  // or less.
  const double bytes = static_cast<double>(text.size()) / static_cast<double>(ids.size());
  EXPECT_NEAR(line["validation_bits_per_byte"].get<double>(),
              line["validation_loss"].get<double>() / std::log(2.0) / bytes,
              0.01 * line["validation_loss"].get<double>());
  EXPECT_EQ(line["validation_bits_per_byte_sets"]["held"], line["validation_bits_per_byte"]);
  std::vector<std::string> of_bytes = sets;
  of_bytes.insert(of_bytes.end(), {"model.vocab_size=256", "run.name=bytes"});
  ASSERT_EQ(train(of_bytes).code, 0);
  EXPECT_DOUBLE_EQ(last("bytes")["validation_bits_per_byte"].get<double>(),
                   last("bytes")["validation_loss"].get<double>() / std::log(2.0));
  const Result compared = folder_.orthant({"bench", "compare", "runs/own", "runs/bytes"});
  EXPECT_EQ(compared.code, 0) << compared.error;
  EXPECT_THAT(compared.output, AllOf(HasSubstr("validation_bits_per_byte, last"), HasSubstr("losses are left out")));
}

TEST_F(RunTokenizer, OfTokenFilesIsKeptWhereItIsNamedAndMadeThem) {
  ASSERT_EQ(folder_.orthant({"data", "prepare", "text.txt", "-o", "a.tok", "--tokenizer", "t"}).code, 0);
  ASSERT_EQ(folder_.orthant({"data", "prepare", "text.txt", "-o", "b.tok"}).code, 0);
  const std::string source = "data.source=\"tokens\"";
  const Result trained = train({source, "data.path=a.tok", "data.tokenizer=t", "run.steps=4"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  EXPECT_TRUE(fs::exists(folder_.run() / "tokenizer" / "tokenizer.json"));
  const Result unnamed = train({source, "data.path=a.tok", "run.steps=5"}, {"--resume", "auto"});
  EXPECT_EQ(unnamed.code, 0) << unnamed.error;  // the file says which tokenizer made it
  const Result other = train({source, "data.path=b.tok", "data.tokenizer=t", "run.name=s"});
  EXPECT_EQ(other.code, 78);
  EXPECT_THAT(other.error, HasSubstr("name the one that made it, or none"));
}

// A .model goes out with a tokenizer.json, which transformers reads; here the .model stays the one that is read.
TEST_F(RunTokenizer, OfSentencePieceIsExportedForTransformers) {
  const Result made = folder_.orthant({"data", "tokenizer", "text.txt", "-o", "small.model", "--vocab-size", "290"});
  ASSERT_EQ(made.code, 0) << made.error;
  const Result trained = train({"data.tokenizer=small.model", "run.validate_every=0"});
  ASSERT_EQ(trained.code, 0) << trained.error;
  for (const char* out : {"out", "again"}) {
    const Result exported = folder_.orthant({"export", "runs/r", "-o", out});
    ASSERT_EQ(exported.code, 0) << exported.error;
    const auto from_json = load_tokenizer(folder_.path(out).string() + "/tokenizer.json");
    const auto from_folder = load_tokenizer(folder_.path(out).string());
    const auto model = load_tokenizer(folder_.path("small.model").string());
    EXPECT_EQ(from_folder->hash(), model->hash());
    EXPECT_EQ(from_json->encode(" hello  world\n"), model->encode(" hello  world\n"));
    EXPECT_TRUE(read_file(folder_.path(out) / "tokenizer.model") == read_file(folder_.path("small.model")));
    // A run on what was exported keeps the .model, and makes the same files of it.
    const Result on = train({fmt::format("data.tokenizer={}", out), "run.steps=9"}, {"--resume", "auto"});
    EXPECT_EQ(on.code, 0) << on.error;
  }
  EXPECT_TRUE(read_file(folder_.path("out/tokenizer.json")) == read_file(folder_.path("again/tokenizer.json")));
  EXPECT_TRUE(read_file(folder_.path("out/tokenizer_config.json")) ==
              read_file(folder_.path("again/tokenizer_config.json")));
}

}  // namespace
}  // namespace orthant::run_test::tokenizer_test
