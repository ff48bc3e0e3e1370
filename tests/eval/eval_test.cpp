// `orthant eval` against its definition: the logits of each window in fp64, token by token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/eval/evaluate.h"
#include "apps/eval/score.h"
#include "apps/pretrained/sample_logits.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"
#include "parallel/local/thread_world.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::eval_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class Eval : public testing::Test {
 protected:
  // A routed model of bytes, dropless, a few steps old.
  void SetUp() override {
    folder_.write("c.toml",
                  "[run]\nsteps = 5\nname = \"r\"\n[data]\npath = [\"text.txt\"]\nsequence_length = 16\n"
                  "[batch]\nsequences = 4\n[model]\nlayers = 2\nd_model = 16\nheads = 2\n"
                  "[moe]\nexperts = 4\ntop_k = 2\n[optimizer]\nlr = 0.02\nschedule = \"constant\"\n"
                  "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n");
    const auto trained = folder_.orthant({"launch", "c.toml"});
    ASSERT_EQ(trained.code, 0) << trained.error;
    folder_.write("held.txt", text_);
  }

  json ask(std::vector<std::string> words) {
    words.insert(words.begin(), {"eval", "runs/r", "--json"});
    const auto result = folder_.orthant(words);
    EXPECT_EQ(result.code, 0) << result.error;
    return json::parse(result.output, nullptr, false);
  }
  std::string refusal(std::vector<std::string> words, int code = 78) {
    words.insert(words.begin(), "eval");
    const auto result = folder_.orthant(words);
    EXPECT_EQ(result.code, code) << result.output;
    return result.error;
  }

  // -log p of bytes [1, n) of `text` in windows, by fp64 logits; those below `from` do not count.
  double nats(const std::string& text, std::int64_t length, std::size_t from = 1) {
    const Config config = load_config((folder_.run() / "config.resolved.toml").string(), {}, keys_of_plugin);
    const auto checkpoint = starting_checkpoint(folder_.run());
    double sum = 0;
    for (std::size_t begin = 0; begin + 1 < text.size(); begin += static_cast<std::size_t>(length)) {
      const std::size_t count = std::min(text.size() - 1 - begin, static_cast<std::size_t>(length));
      std::vector<std::int32_t> token;
      for (std::size_t i = 0; i < count; ++i) {
        token.push_back(static_cast<unsigned char>(text[begin + i]));
      }
      const std::vector<double> logits = sample_logits(config, checkpoint, token, 1);
      for (std::size_t i = 0; i < count; ++i) {
        const double* row = logits.data() + 256 * i;
        double total = 0;
        for (int w = 0; w < 256; ++w) {
          total += std::exp(row[w]);
        }
        const std::size_t next = begin + i + 1;
        sum += next >= from ? std::log(total) - row[static_cast<unsigned char>(text[next])] : 0;
      }
    }
    return sum;
  }

  run_test::ProgramFolder folder_;
  const std::string text_ = "Every token of a file but its first is predicted once; the last window is short. \xC3\xA9";
};

TEST_F(Eval, IsTheMeanOfEveryTokenButTheFirst) {
  const json found = ask({"held.txt", "text.txt"});
  const json& file = found["files"][0];
  EXPECT_EQ(file["bytes"], text_.size());
  EXPECT_EQ(file["tokens"], text_.size() - 1);
  const double expected = nats(text_, 16);
  const double tokens = static_cast<double>(text_.size() - 1);
  EXPECT_NEAR(file["nats_per_token"].get<double>(), expected / tokens, 1e-5);
  EXPECT_NEAR(file["perplexity"].get<double>(), std::exp(expected / tokens), 1e-3);
  EXPECT_NEAR(file["bits_per_byte"].get<double>(), expected / std::log(2) / static_cast<double>(text_.size()), 1e-5);
  EXPECT_LT(found["files"][1]["nats_per_token"], file["nats_per_token"]) << "the text that it was trained on";
}

// A row's text is what is scored, not the line with its braces and its other keys.
TEST_F(Eval, OfJsonLinesTheTextOfEachRowIsScored) {
  const std::string first = "The first of two rows, which is longer than a window.", second = "A second row.";
  const auto rows = [&](const char* key) {
    return json{{"id", 7}, {key, first}}.dump() + "\n\n" + json{{key, second}, {"id", 8}}.dump() + "\n";
  };
  folder_.write("rows.jsonl", rows("text"));
  folder_.write("others.jsonl", rows("body"));
  const double expected = nats(first, 16) + nats(second, 16);
  const double tokens = static_cast<double>(first.size() + second.size() - 2);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"rows.jsonl"}, {"others.jsonl", "--text-key", "body"}}) {
    const json file = ask(words)["files"][0];
    EXPECT_EQ(file["bytes"], first.size() + second.size());
    EXPECT_EQ(file["tokens"], tokens);
    EXPECT_NEAR(file["nats_per_token"].get<double>(), expected / tokens, 1e-5);
  }
  const run_test::Result refused = folder_.orthant({"eval", "runs/r", "others.jsonl"});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.error, testing::HasSubstr("others.jsonl', line 1"));
}

TEST_F(Eval, WindowsAreAsLongAsTheyAreAskedToBe) {
  const json found = ask({"held.txt", "--length", "40"});
  EXPECT_EQ(found["length"], 40);
  EXPECT_NEAR(found["files"][0]["nats_per_token"].get<double>(),
              nats(text_, 40) / static_cast<double>(text_.size() - 1), 1e-5);
}

TEST_F(Eval, TheLikeliestChoiceIsTheAnswer) {
  const std::string context = "the la";
  const std::vector<std::string> choices = {"st", "zzzz", "q"};
  std::size_t likeliest = 0, likeliest_mean = 0;
  const auto mean = [&](std::size_t i) {
    return nats(context + choices[i], 16, context.size()) / static_cast<double>(choices[i].size());
  };
  for (std::size_t i = 1; i < choices.size(); ++i) {
    const auto sum = [&](std::size_t j) { return nats(context + choices[j], 16, context.size()); };
    likeliest = sum(i) < sum(likeliest) ? i : likeliest;
    likeliest_mean = mean(i) < mean(likeliest_mean) ? i : likeliest_mean;
  }
  std::string lines;
  for (std::size_t answer = 0; answer < choices.size(); ++answer) {
    lines += json{{"context", context}, {"choices", choices}, {"answer", answer}}.dump() + "\n\n";
  }
  folder_.write("task.jsonl", lines);
  const json task = ask({"--task", "task.jsonl"})["tasks"][0];
  EXPECT_EQ(task["questions"], 3);
  EXPECT_EQ(task["right"], 1) << "each choice is the answer once";
  // Only the question whose answer is the likeliest choice is right.
  folder_.write("one.jsonl", json{{"context", context}, {"choices", choices}, {"answer", likeliest}}.dump());
  EXPECT_EQ(ask({"--task", "one.jsonl"})["tasks"][0]["right"], 1);
  folder_.write("mean.jsonl", json{{"context", context}, {"choices", choices}, {"answer", likeliest_mean}}.dump());
  EXPECT_EQ(ask({"--task", "mean.jsonl"})["tasks"][0]["right_per_token"], 1);
}

// A sequence's number has the same bits alone, among others and in a longer row, where no token takes another's seat.
TEST_F(Eval, ASequenceHasOneNumberInAnyCompany) {
  const auto sequence = [&](std::size_t begin, std::size_t count) {
    ScoredSequence made;
    for (std::size_t i = begin; i < begin + count; ++i) {
      made.token.push_back(static_cast<unsigned char>(text_[i]));
      made.label.push_back(i < begin + count / 2 ? -1 : static_cast<unsigned char>(text_[i + 1]));
    }
    return made;
  };
  const std::vector<ScoredSequence> all = {sequence(0, 16), sequence(3, 1), sequence(20, 9), sequence(7, 13)};
  using Set = std::vector<std::string>;
  for (const auto& [name, set] :
       std::vector<std::pair<std::string, Set>>{{"no capacity", {"moe.capacity_factor=0"}},
                                                {"capacity", {"moe.capacity_factor=0.5"}},
                                                {"gshard", {"moe.capacity_factor=0", "moe.router=\"gshard\""}}}) {
    const OpenedModel model(folder_.run(), "eval", set, keys_of_plugin, {});
    run_threads(1, [&](Communicator& communicator) {
      Scorer scorer(model, 16, 2, communicator);
      const std::vector<double> together = scorer.score(all);
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(scorer.score({&all[i], 1})[0], together[i]) << i << " with " << name;
        std::string text;
        for (const std::int32_t id : all[i].token) {
          text += static_cast<char>(id);
        }
        text += static_cast<char>(all[i].label.back());
        if (name == "no capacity") {
          EXPECT_NEAR(together[i], nats(text, 16, all[i].token.size() / 2 + 1), 1e-5) << i;
        }
      }
    });
  }
}

TEST_F(Eval, ChoicesAloneAndTogetherAreRankedAlike) {
  const auto line = [&](const std::vector<std::string>& choices, std::size_t answer) {
    return json{{"context", "the la"}, {"choices", choices}, {"answer", answer}}.dump() + "\n";
  };
  const std::vector<std::pair<std::vector<std::string>, std::size_t>> questions = {
      {{"st", "zzzz", "q"}, 0}, {{" window is", " w", "zz"}, 2}, {{"a", "b", "c", "d", "e"}, 3}};
  for (const char* capacity : {"0", "0.5", "0.5 with groups of two sequences"}) {
    std::vector<std::string> set = {"--set", std::string("moe.capacity_factor=") + std::string(capacity).substr(0, 3)};
    if (std::string(capacity).size() > 3) {
      set.insert(set.end(), {"--set", "moe.group_tokens=32"});
    }
    int right = 0, right_per_token = 0;
    std::string all;
    for (const auto& [choices, answer] : questions) {
      folder_.write("one.jsonl", line(choices, answer));
      std::vector<std::string> words = {"--task", "one.jsonl"};
      words.insert(words.end(), set.begin(), set.end());
      const json one = ask(words)["tasks"][0];
      right += one["right"].get<int>();
      right_per_token += one["right_per_token"].get<int>();
      all += line(choices, answer);
    }
    folder_.write("all.jsonl", all);
    std::vector<std::string> words = {"--task", "all.jsonl", "held.txt"};
    words.insert(words.end(), set.begin(), set.end());
    const json task = ask(words)["tasks"][0];
    EXPECT_EQ(task["right"], right) << capacity;
    EXPECT_EQ(task["right_per_token"], right_per_token) << capacity;
  }
}

// A model that has learnt a text that says one thing again and again.
class ExactMatch : public Eval {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 300; ++i) {
      text += "The lazy dog sleeps.\nA caf\xC3\xA9 is open.\n";
    }
    folder_.write("text.txt", text);
    folder_.write("c.toml",
                  "[run]\nsteps = 60\nname = \"r\"\n[data]\npath = [\"text.txt\"]\nsequence_length = 32\n"
                  "[batch]\nsequences = 8\n[model]\nlayers = 2\nd_model = 32\nheads = 2\n"
                  "[moe]\nexperts = 4\ntop_k = 2\ncapacity_factor = 0\n"
                  "[optimizer]\nlr = 0.02\nschedule = \"constant\"\n");
    const auto trained = folder_.orthant({"train", "c.toml"});
    ASSERT_EQ(trained.code, 0) << trained.error;
  }

  // What `orthant generate` says, as it says it.
  std::string generated(const std::string& prompt, const std::string& stop, int max_tokens) {
    const auto result = folder_.orthant({"generate", "runs/r", "--prompt", prompt, "--stop", stop, "--max-tokens",
                                         std::to_string(max_tokens), "--temperature", "0", "--json"});
    EXPECT_EQ(result.code, 0) << result.error;
    return json::parse(result.output)["text"].get<std::string>();
  }
  json task(const std::vector<std::pair<std::string, std::string>>& questions, std::vector<std::string> more = {}) {
    std::string lines;
    for (const auto& [prompt, answer] : questions) {
      lines += json{{"prompt", prompt}, {"answer", answer}}.dump() + "\n";
    }
    folder_.write("task.jsonl", lines);
    more.insert(more.begin(), {"--task", "task.jsonl"});
    return ask(more)["tasks"][0];
  }
};

TEST_F(ExactMatch, TheAnswerIsWhatTheModelGeneratesToTheEndOfALine) {
  const std::string first = generated("The lazy", "\n", 64), second = generated("A caf", "\n", 64);
  ASSERT_EQ(first, " dog sleeps.") << "the model has not learnt its text";
  ASSERT_NE(first, second);
  const json found = task({{"The lazy", "dog sleeps."}, {"A caf", second}, {"The lazy", "dog"}, {"A caf", "x"}});
  EXPECT_EQ(found["kind"], "exact");
  EXPECT_EQ(found["questions"], 4);
  EXPECT_EQ(found["right"], 2);
  EXPECT_EQ(found["answers"], json({"dog sleeps.", second, "dog sleeps.", second}));
  EXPECT_FALSE(found.contains("right_per_token"));
  // More questions than are worked on at once: each has its own answer.
  std::vector<std::pair<std::string, std::string>> many;
  for (int i = 0; i < 70; ++i) {
    many.emplace_back(i % 3 == 0 ? "The lazy" : "A caf", i % 3 == 0 ? "dog sleeps. " : "\t " + second);
  }
  EXPECT_EQ(task(many)["right"], 70);
}

TEST_F(ExactMatch, StopTextsAndTokensEndAnAnswer) {
  EXPECT_EQ(task({{"The lazy", "dog"}}, {"--stop", " sleeps"})["right"], 1);
  EXPECT_EQ(task({{"The lazy", "dog s"}}, {"--stop", "z", "--stop", "l"})["right"], 1);
  EXPECT_EQ(task({{"The lazy", "dog"}}, {"--max-tokens", "4"})["right"], 1);
  const std::string beyond = generated("The lazy", "open", 64);  // an end of a line is a text like others then
  ASSERT_NE(beyond.find('\n'), std::string::npos);
  EXPECT_EQ(task({{"The lazy", beyond}}, {"--stop", "open"})["right"], 1);
}

TEST_F(ExactMatch, StandsBesideTextsAndChoices) {
  folder_.write("choices.jsonl", R"({"context": "The lazy", "choices": [" cat", " dog"], "answer": 1})");
  folder_.write("exact.jsonl", R"({"prompt": "The lazy", "answer": "dog sleeps."})");
  folder_.write("held.txt", "A caf");
  const json found = ask({"held.txt", "--task", "exact.jsonl", "--task", "choices.jsonl"});
  EXPECT_EQ(found["files"].size(), 1U);
  EXPECT_EQ(found["tasks"][0]["kind"], "exact");
  EXPECT_EQ(found["tasks"][0]["right"], 1);
  EXPECT_EQ(found["tasks"][1]["kind"], "likelihood");
  EXPECT_EQ(found["tasks"][1]["right"], 1);
  const auto table = folder_.orthant({"eval", "runs/r", "--task", "exact.jsonl", "--task", "choices.jsonl"});
  EXPECT_THAT(table.output, AllOf(HasSubstr("100.00%            exact  exact.jsonl"),
                                  HasSubstr("100.00%          100.00%  choices.jsonl")));
}

TEST_F(ExactMatch, BadQuestionsAreRefusedByPlace) {
  const auto refused = [&](const std::string& text) {
    folder_.write("bad.jsonl", text);
    return refusal({"runs/r", "--task", "bad.jsonl"});
  };
  EXPECT_THAT(refused(R"({"prompt": "a", "answer": " "})"), AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("is empty")));
  EXPECT_THAT(refused(R"({"prompt": "a", "answer": 1})"), AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("answer")));
  EXPECT_THAT(refused(R"({"prompt": "", "answer": "b"})"), AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("no token")));
  EXPECT_THAT(refused("{\"prompt\": \"a\", \"answer\": \"b\"}\n"
                      "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}"),
              AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("questions of one kind")));
}

TEST_F(Eval, BadInputIsRefusedByPlace) {
  EXPECT_THAT(refusal({"runs/r"}, 2), HasSubstr("FILES or --task is required"));
  EXPECT_THAT(refusal({"runs/r", "none.txt"}), HasSubstr("none.txt"));
  folder_.write("short.txt", "x");
  EXPECT_THAT(refusal({"runs/r", "short.txt"}), HasSubstr("has 1 tokens"));
  const auto task = [&](const std::string& text) {
    folder_.write("task.jsonl", text);
    return refusal({"runs/r", "--task", "task.jsonl"});
  };
  EXPECT_THAT(task("\n"), HasSubstr("has no question"));
  EXPECT_THAT(task("\n{"), AllOf(HasSubstr("task.jsonl:2"), HasSubstr("not valid JSON")));
  EXPECT_THAT(task(R"({"context": "a", "choices": ["b"], "answer": 0})"), HasSubstr("at least two texts"));
  EXPECT_THAT(task(R"({"context": "a", "choices": ["b", "c"], "answer": 2})"),
              HasSubstr("'answer' is 2, of 2 choices"));
  EXPECT_THAT(task(R"({"context": "a", "choices": ["b", "c"], "answer": -1})"),
              AllOf(HasSubstr("task.jsonl:1"), HasSubstr("'answer' must be a whole number from 0")));
  EXPECT_THAT(task(R"({"context": "", "choices": ["b", "c"], "answer": 0})"), HasSubstr("no token before the choice"));
  EXPECT_THAT(task(R"({"context": "a", "choices": ["", "c"], "answer": 0})"), HasSubstr("the choice '' has no token"));
  EXPECT_THAT(task(R"({"context": "0123456789abcdef", "choices": ["ghi", "c"], "answer": 0})"),
              HasSubstr("give a larger --length"));
}

TEST_F(Eval, LengthsThatTheModelCannotHaveAreRefused) {
  EXPECT_THAT(refusal({"runs/r", "held.txt", "--length", "40", "--set", "moe.group_tokens=16"}),
              HasSubstr("group_tokens"));
  EXPECT_EQ(ask({"held.txt", "--length", "32", "--set", "moe.group_tokens=16"})["length"], 32);
  folder_.write("learned.toml",
                "[run]\nsteps = 1\nname = \"learned\"\n[data]\npath = [\"text.txt\"]\nsequence_length = 16\n"
                "[batch]\nsequences = 2\n[model]\nlayers = 1\nd_model = 16\nheads = 2\npositions = \"learned\"\n");
  ASSERT_EQ(folder_.orthant({"train", "learned.toml"}).code, 0);
  EXPECT_THAT(refusal({"runs/learned", "held.txt", "--length", "40"}), HasSubstr("has learned its positions"));
}

TEST_F(Eval, ScoresThatAreNotFiniteAreNoAnswer) {
  // Weights after a step that is far too long: finite, their products are not.
  const auto trained = folder_.orthant(run_test::with_set(
      {"launch", "c.toml"}, {"run.name=\"wild\"", "run.steps=1", "optimizer.lr=1e15", "optimizer.warmup_steps=0"}));
  ASSERT_EQ(trained.code, 0) << trained.error;
  folder_.write("task.jsonl", R"({"context": "a", "choices": ["b", "c"], "answer": 0})");
  for (const std::vector<std::string>& what : {std::vector<std::string>{"held.txt"}, {"--task", "task.jsonl"}}) {
    std::vector<std::string> words = {"eval", "runs/wild"};
    words.insert(words.end(), what.begin(), what.end());
    const auto result = folder_.orthant(words);
    EXPECT_NE(result.code, 0) << result.output;
    EXPECT_THAT(result.error, HasSubstr(what.back()));
  }
}

// As long as its positions, where nobody asks for other ones.
TEST_F(Eval, APublishedModelHasWindowsOfItsOwn) {
  folder_.write("m.toml",
                "[run]\nsteps = 1\nname = \"m\"\n[data]\npath = [\"text.txt\"]\nsequence_length = 16\n"
                "[batch]\nsequences = 4\n[model]\nlayers = 1\nd_model = 16\nheads = 2\nactivation = \"swiglu\"\n"
                "[moe]\nexperts = 4\ntop_k = 2\n");
  ASSERT_EQ(folder_.orthant({"launch", "m.toml"}).code, 0);
  const auto exported = folder_.orthant({"export", "runs/m", "-o", "hf"});
  ASSERT_EQ(exported.code, 0) << exported.error;
  const auto eval = [&](const char* model, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"eval", model, "held.txt", "--json"});
    const auto result = folder_.orthant(words);
    EXPECT_EQ(result.code, 0) << result.error;
    return json::parse(result.output, nullptr, false);
  };
  EXPECT_EQ(eval("hf"), eval("runs/m"));
  json config = json::parse(launch_test::read_file(folder_.path("hf/config.json")));
  for (const auto& [positions, length] : {std::pair(40, 40), std::pair(1000000, 2048)}) {
    config["max_position_embeddings"] = positions;
    folder_.write("hf/config.json", config.dump());
    EXPECT_EQ(eval("hf")["length"], length);
  }
  EXPECT_EQ(eval("hf", {"--length", "8"})["length"], 8);
  EXPECT_EQ(eval("hf", {"--set", "data.sequence_length=24"})["length"], 24);
}

TEST_F(Eval, ATokenizerOfAnotherModelIsRefused) {
  folder_.write("small.txt", "abc");
  const std::string model = paths::source() + std::string("/tests/pretrained/models/mixtral");
  EXPECT_THAT(refusal({model, "small.txt"}),
              AllOf(HasSubstr("its 38 ids are not those of bytes"), HasSubstr("--tokenizer FILE")));
  EXPECT_THAT(refusal({model, "small.txt", "--tokenizer", "bytes"}), HasSubstr("has 256 tokens, the model 38"));
}

}  // namespace
}  // namespace orthant::eval_test
