// What an encoder-decoder answers: by the encoder once and keys and values kept, against training's forward pass on
// whole sequences, in fp64 at the head; and what commands say of such a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/pretrained/sample_logits.h"
#include "core/config/config.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"
#include "tests/support/program.h"

namespace orthant::test::encoder_decoder_answers_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

Ids ids_of(const std::string& text) {
  return {text.begin(), text.end()};
}

class Answers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<run_test::ProgramFolder>();
    folder_->write("c.toml",
                   "[run]\nsteps = 12\nname = \"r\"\ncheckpoint_every = 6\n[data]\nsource = \"rewriting\"\n"
                   "sequence_length = 12\n[batch]\nsequences = 8\n"
                   "[model]\nkind = \"t5\"\nlayers = 2\nencoder_layers = 3\nsource_length = 14\nd_model = 24\n"
                   "heads = 3\nhead_dim = 6\nactivation = \"relu\"\nrelative_buckets = 8\nrelative_distance = 9\n"
                   "vocab_size = 256\nend_token = 46\nstart_token = 1\n"
                   "[moe]\nexperts = 4\ntop_k = 2\nevery = 2\n[optimizer]\nlr = 0.01\n[plugins.encoder_decoder]\n");
    const auto trained = folder_->orthant({"launch", "c.toml"});
    ASSERT_EQ(trained.code, 0) << trained.error;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static json lines(const std::string& text) {
    json all = json::array();
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t end = text.find('\n', at);
      all.push_back(json::parse(text.substr(at, end - at)));
      at = end + 1;
    }
    return all;
  }
  static std::string refusal(const std::vector<std::string>& words) {
    const auto result = folder_->orthant(words);
    EXPECT_EQ(result.code, 78) << result.output << result.error;
    return result.error;
  }
  // Behind the tokens of an answer to a source, whole sequences of training's forward pass.
  static std::vector<double> logits(const Ids& source, const Ids& answer) {
    static const Config config =
        load_config((folder_->run() / "config.resolved.toml").string(), {}, keys_of_plugin, kinds_of_plugin);
    const std::vector<double> all = sample_logits(config, starting_checkpoint(folder_->run()), answer, 1, source);
    return {all.end() - 256, all.end()};
  }
  static double nats(const std::string& source, const std::string& target) {
    Ids answer = {1};
    double sum = 0;
    for (const char next : target) {
      const std::vector<double> row = logits(ids_of(source), answer);
      double total = 0;
      for (const double x : row) {
        total += std::exp(x);
      }
      sum += std::log(total) - row[static_cast<unsigned char>(next)];
      answer.push_back(next);
    }
    return sum;
  }

  static std::unique_ptr<run_test::ProgramFolder> folder_;
};
std::unique_ptr<run_test::ProgramFolder> Answers::folder_;

TEST_F(Answers, AreThoseOfTheLikeliestTokens) {
  const auto result = folder_->orthant({"generate", "runs/r", "--prompt", "planet.", "--prompt", "abba",
                                        "--temperature", "0", "--max-tokens", "9", "--json", "--verify"});
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("have the bits of training's forward pass"));
  const json found = lines(result.output);
  ASSERT_EQ(found.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Ids source = ids_of(i == 0 ? "planet." : "abba.");  // the token that ends a source is put behind it
    Ids answer = {1};
    for (const json& token : found[i]["tokens"]) {
      const std::vector<double> row = logits(source, answer);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      EXPECT_EQ(token.get<std::int64_t>(), best) << i << " behind " << answer.size();
      answer.push_back(token.get<std::int32_t>());
    }
    EXPECT_GT(answer.size(), 1u);
  }
}

TEST_F(Answers, HaveTheBitsOfTrainingInAnyCompany) {
  folder_->write(
      "words.jsonl",
      "{\"prompt\": \"a.\"}\n{\"prompt\": \"bottle.\"}\n{\"ids\": [99, 98, 97]}\n{\"prompt\": \"evening.\"}\n");
  for (const char* batch : {"1", "5"}) {
    const auto result =
        folder_->orthant({"generate", "runs/r", "--prompts", "words.jsonl", "--samples", "3", "--seed", "7", "--batch",
                          batch, "--max-tokens", "11", "--ignore-eos", "--verify", "--json"});
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_THAT(result.error, HasSubstr("132 of 132 log-probabilities and 132 of 132 choices"));
  }
}

TEST_F(Answers, EndWithTheModelsOwnToken) {
  const auto ends = [&](bool ignore) {
    std::vector<std::string> words = {"generate", "runs/r", "--prompt",     "stone.", "--samples", "40",
                                      "--seed",   "3",      "--max-tokens", "60",     "--json"};
    if (ignore) {
      words.emplace_back("--ignore-eos");
    }
    const auto result = folder_->orthant(words);
    EXPECT_EQ(result.code, 0) << result.error;
    int stopped = 0;
    for (const json& line : lines(result.output)) {
      stopped += line["finish"] == "stop" ? 1 : 0;
      EXPECT_EQ(line["finish"] == "stop", !ignore && line["tokens"].back() == 46) << line.dump();
    }
    return stopped;
  };
  EXPECT_GT(ends(false), 0);
  EXPECT_EQ(ends(true), 0);
}

TEST_F(Answers, AreEvaluatedByTheirTargets) {
  folder_->write("pairs.jsonl",
                 "{\"source\": \"planet.\", \"target\": \"tEnAlp.\"}\n{\"source\": \"abba.\", \"target\": \"AbbA\"}\n");
  const auto result = folder_->orthant({"eval", "runs/r", "pairs.jsonl", "--task", "pairs.jsonl", "--json"});
  ASSERT_EQ(result.code, 0) << result.error;
  const json found = json::parse(result.output);
  const double expected = nats("planet.", "tEnAlp.") + nats("abba.", "AbbA.");
  const json& file = found["files"][0];
  EXPECT_EQ(file["tokens"], 12);
  EXPECT_EQ(file["bytes"], 11);
  EXPECT_NEAR(file["nats_per_token"].get<double>(), expected / 12, 1e-5);
  const json& task = found["tasks"][0];
  EXPECT_EQ(task["kind"], "exact");
  EXPECT_EQ(task["questions"], 2);
  std::int64_t right = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    right += task["answers"][i] == (i == 0 ? "tEnAlp" : "AbbA") ? 1 : 0;  // without what ends it
  }
  EXPECT_EQ(task["right"], right);
}

TEST_F(Answers, ChoicesAreRankedBehindTheirSource) {
  folder_->write("choices.jsonl",
                 "{\"context\": \"planet.\", \"choices\": [\"tEnAlp.\", \"zzzzzz.\"], \"answer\": 0}\n");
  const auto result = folder_->orthant({"eval", "runs/r", "--task", "choices.jsonl", "--json"});
  ASSERT_EQ(result.code, 0) << result.error;
  const bool first = nats("planet.", "tEnAlp.") < nats("planet.", "zzzzzz.");
  EXPECT_EQ(json::parse(result.output)["tasks"][0]["right"], first ? 1 : 0);
}

TEST_F(Answers, OtherCommandsSayWhatTheyKnow) {
  folder_->write("plain.txt", "No source and no target.\n");
  EXPECT_THAT(refusal({"eval", "runs/r", "plain.txt"}),
              HasSubstr("'plain.txt': a model of kind \"t5\" is asked for targets"));
  folder_->write("long.jsonl", "{\"source\": \"a\", \"target\": \"" + std::string(20, 'a') + "\"}\n");
  EXPECT_THAT(refusal({"eval", "runs/r", "long.jsonl"}),
              AllOf(HasSubstr("long.jsonl:1"), HasSubstr("a target of 21 tokens, and a window has 12")));
  EXPECT_THAT(refusal({"generate", "runs/r", "--prompt", "a source that is too long"}),
              HasSubstr("sources have 14 positions, model.source_length"));
  folder_->write("layout.toml", "[data]\nsource = \"synthetic\"\n[plugins.tensor]\nsize = 3\n");
  EXPECT_THAT(refusal({"generate", "runs/r", "--prompt", "a.", "--layout", "layout.toml"}),
              HasSubstr("a model of kind \"t5\" answers on one rank"));
  EXPECT_THAT(refusal({"distil", "runs/r", "-o", "student"}),
              HasSubstr("[model] kind: distil knows models of kind \"decoder\" alone, and this one is \"t5\""));
  EXPECT_THAT(refusal({"export", "runs/r", "-o", "out", "--adapter"}), HasSubstr("[model] kind: export --adapter"));
  EXPECT_THAT(refusal({"route", "runs/r"}), AllOf(Not(HasSubstr("[data] source"))));
  const auto exported = folder_->orthant({"export", "runs/r", "-o", "out"});
  EXPECT_EQ(exported.code, 0) << exported.error;
  EXPECT_THAT(exported.output + exported.error, HasSubstr("moe.router"));  // no family has this one
  const auto average = folder_->orthant({"checkpoint", "average", "runs/r", "-o", "mean"});
  EXPECT_EQ(average.code, 0) << average.error;
  const auto again = folder_->orthant({"generate", "mean", "--prompt", "a.", "--max-tokens", "2", "--verify"});
  EXPECT_EQ(again.code, 0) << again.error;
}

}  // namespace
}  // namespace orthant::test::encoder_decoder_answers_test
