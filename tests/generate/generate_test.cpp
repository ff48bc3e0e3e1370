// `orthant generate`: the program, answers alone and in company, stop texts, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::generate_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class Generate : public testing::Test {
 protected:
  // A routed model of bytes with a capacity, a few steps old.
  void SetUp() override {
    folder_.write("c.toml",
                  "[run]\nsteps = 5\nname = \"r\"\n[data]\npath = [\"text.txt\"]\nsequence_length = 16\n"
                  "[batch]\nsequences = 4\n[model]\nlayers = 2\nd_model = 16\nheads = 2\n"
                  "[moe]\nexperts = 4\ntop_k = 2\ncapacity_factor = 1.25\n[optimizer]\nlr = 0.02\n"
                  "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n");
    folder_.write("text.txt", [] {
      std::string text;
      for (int i = 0; i < 200; ++i) {
        text += "the cat sat on the mat and the dog lay by the log. ";
      }
      return text;
    }());
    const auto trained = folder_.orthant({"launch", "c.toml"});
    ASSERT_EQ(trained.code, 0) << trained.error;
  }

  std::vector<json> answers(std::vector<std::string> words, std::string* said = nullptr) {
    words.insert(words.begin(), {"generate", "runs/r", "--json"});
    const auto result = folder_.orthant(words);
    EXPECT_EQ(result.code, 0) << result.error;
    if (said != nullptr) {
      *said = result.error;
    }
    std::vector<json> lines;
    std::istringstream in(result.output);
    for (std::string line; std::getline(in, line);) {
      lines.push_back(json::parse(line, nullptr, false));
    }
    return lines;
  }
  std::string refusal(std::vector<std::string> words, int code = 78) {
    words.insert(words.begin(), {"generate", "runs/r"});
    const auto result = folder_.orthant(words);
    EXPECT_EQ(result.code, code) << result.output << result.error;
    return result.error;
  }

  run_test::ProgramFolder folder_;
};

// The same answers one by one and all at once, in any company, with as many threads.
TEST_F(Generate, AnAnswerDoesNotDependOnItsCompany) {
  std::string lines;
  for (const char* prompt : {"the", "the cat sat on the mat and the dog", "a", "lay by", "log. the ca"}) {
    lines += json({{"prompt", prompt}}).dump() + "\n";
  }
  folder_.write("p.jsonl", lines);
  const std::vector<std::string> words = {"--prompts", "p.jsonl", "--max-tokens",       "40",
                                          "--samples", "3",       "--log-probabilities"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    std::set<std::string> found;
    for (const json& line : answers(more)) {
      found.insert(line.dump());
    }
    return found;
  };
  const auto alone = with({"--batch", "1", "--threads", "1"});
  EXPECT_EQ(alone.size(), 15u);
  EXPECT_EQ(with({"--batch", "4", "--threads", "2"}), alone);
  EXPECT_EQ(with({"--batch", "64", "--threads", "1"}), alone);
}

TEST_F(Generate, VerifiesAndSaysThatThereIsNoCapacity) {
  std::string said;
  answers({"--prompt", "the ", "--samples", "2", "--max-tokens", "30", "--verify"}, &said);
  EXPECT_THAT(said, AllOf(HasSubstr("verify: 60 of 60 log-probabilities and 132 of 132 choices"),
                          HasSubstr("without the capacity")));
}

// The run's own plugins divide the model: two ranks, the same answers. Others may be asked for.
TEST_F(Generate, InTheLayoutOfTheRun) {
  const std::vector<std::string> words = {"--prompt",     "the ", "--prompt", "log. the cat",       "--samples", "2",
                                          "--max-tokens", "20",   "--verify", "--log-probabilities"};
  const auto with = [&](std::vector<std::string> more, std::string* said = nullptr) {
    more.insert(more.begin(), words.begin(), words.end());
    return answers(more, said);
  };
  std::string said;
  EXPECT_EQ(with({"--layout", "run"}, &said), with({}));
  EXPECT_THAT(said, AllOf(HasSubstr(", 2 ranks)"), HasSubstr("80 of 80 log-probabilities")));
  folder_.write("l.toml", "[plugins.tensor]\nsize = 2\nexperts = \"fold\"\n[plugins.expert]\nsize = 2\n");
  with({"--layout", "l.toml"}, &said);
  EXPECT_THAT(said, AllOf(HasSubstr(", 2 ranks)"), HasSubstr("80 of 80 log-probabilities")));
  EXPECT_THAT(refusal({"--prompt", "a", "--layout", "run", "--set", "plugins.sequence.size=2"}),
              HasSubstr("axis 'sequence'"));
  EXPECT_THAT(refusal({"--prompt", "a", "--layout", "absent.toml"}), HasSubstr("absent.toml"));
}

// The same ranks as processes: one of them speaks.
TEST_F(Generate, RanksOfMpirunAnswerAsThreadsDo) {
  if (const std::string why = run_test::why_no_mpirun(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const std::vector<std::string> leaks = {"ASAN_OPTIONS=detect_leaks=0"};  // MPI's own, at exit
  const auto under_mpirun = [&](const std::string& ranks, const std::string& communicator) {
    std::vector<std::string> words = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                                      ranks,    paths::program()};
    for (const char* word : {"generate", "runs/r", "--json", "--prompt", "the ", "--prompt", "log", "--max-tokens",
                             "20", "--batch", "1", "--verify", "--layout", "run"}) {
      words.emplace_back(word);
    }
    return folder_.command(run_test::with_set(words, {"run.communicator=\"" + communicator + "\""}), leaks);
  };
  const auto result = under_mpirun("2", "mpi");
  EXPECT_EQ(result.code, 0) << result.error;
  std::string whole;
  for (const json& line :
       answers({"--prompt", "the ", "--prompt", "log", "--max-tokens", "20", "--batch", "1", "--layout", "run"})) {
    whole += line.dump() + "\n";
  }
  std::string found;
  std::istringstream in(result.output);
  for (std::string line; std::getline(in, line);) {
    found += json::parse(line, nullptr, false).dump() + "\n";
  }
  EXPECT_EQ(found, whole);
  EXPECT_THAT(result.error, HasSubstr("verify: 40 of 40 log-probabilities"));
  // They are on one machine, and may share memory.
  const auto local = under_mpirun("2", "local"), three = under_mpirun("3", "mpi");
  EXPECT_EQ(local.code, 0) << local.error;
  EXPECT_EQ(local.output, result.output);
  EXPECT_THAT(local.error, HasSubstr("verify: 40 of 40 log-probabilities"));
  EXPECT_EQ(three.code, 78);
  EXPECT_THAT(three.error, HasSubstr("the layout has 2 ranks"));
}

// Processes that the command starts itself: answers alone are on the standard output, as they come.
TEST_F(Generate, ItsOwnProcessesAnswerAsThreadsDo) {
  std::vector<std::string> words = {"generate", "runs/r", "--prompt", "the ", "--max-tokens", "20", "--layout", "run"};
  const auto threads = folder_.orthant(words);
  words.emplace_back("--processes");
  const auto processes = folder_.orthant(words);
  EXPECT_EQ(processes.code, 0) << processes.error;
  EXPECT_EQ(processes.output, threads.output);
  EXPECT_THAT(processes.error, AllOf(HasSubstr("2 local ranks answer runs/r"), HasSubstr("[r0] 20 tokens behind 4 in"),
                                     HasSubstr(", 2 ranks)"), Not(HasSubstr("[r1] 20 tokens"))));
  // A published model is imported once, for all of them.
  folder_.write("ids.jsonl", "{\"ids\": [1, 2, 3]}\n");
  folder_.write("l.toml", "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n");
  const std::vector<std::string> ids = {"generate",     paths::published_model("mixtral").string(),
                                        "--tokenizer",  "none",
                                        "--prompts",    "ids.jsonl",
                                        "--max-tokens", "9",
                                        "--json",       "--verify",
                                        "--processes",  "--layout",
                                        "l.toml"};
  const auto published = folder_.orthant(ids);
  EXPECT_EQ(published.code, 0) << published.error;
  EXPECT_EQ(json::parse(published.output)["tokens"].size(), 9u) << published.output;
  EXPECT_THAT(published.error, HasSubstr("verify: 9 of 9 log-probabilities"));
  EXPECT_THAT(refusal({"--prompt", "a", "--processes"}), HasSubstr("give --layout run"));
  EXPECT_THAT(refusal({"--prompt", "a", "--processes", "--layout", "run", "--set", "run.communicator=\"mpi\""}),
              HasSubstr("started by mpirun or srun"));
  const auto bad =
      folder_.orthant({"generate", "runs/r", "--prompt", "a", "--temperature", "-1", "--layout", "run", "--processes"});
  EXPECT_EQ(bad.code, 78) << bad.error;
}

// Ranks of torchrun on one machine share memory.
TEST_F(Generate, RanksOfTorchrunAnswerAsThreadsDo) {
  const std::vector<std::string> words = {"generate",     "runs/r", "--prompt", "the ",
                                          "--max-tokens", "20",     "--layout", "run"};
  const auto threads = folder_.orthant(words);
  std::string line =
      "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=29537 TORCHELASTIC_RUN_ID=generate-$$ ";
  line += paths::program();
  for (const std::string& word : words) {
    line += " '" + word + "'";
  }
  line += " >out$r 2>error$r & ranks+=\" $!\"; done; for p in $ranks; do wait $p || exit; done";
  const auto ranks = folder_.command({"bash", "-c", line});
  EXPECT_EQ(ranks.code, 0) << launch_test::read_file(folder_.path("error0"))
                           << launch_test::read_file(folder_.path("error1"));
  EXPECT_EQ(launch_test::read_file(folder_.path("out0")), threads.output);
  EXPECT_EQ(launch_test::read_file(folder_.path("out1")), "");
  EXPECT_THAT(launch_test::read_file(folder_.path("error0")), HasSubstr(", 2 ranks)"));
}

// Adapters are merged once where weights stay, else whenever a layer's weights are there.
TEST_F(Generate, AdaptersInEveryLayout) {
  const auto trained = folder_.orthant(
      run_test::with_set({"launch", "c.toml"}, {"run.name=\"adapted\"", "lora.rank=2", "optimizer.lr=0.1",
                                                "lora.targets=[\"*.q_proj.weight\", \"*.experts.*.weight\"]"}));
  ASSERT_EQ(trained.code, 0) << trained.error;
  const auto with = [&](const std::string& layout) {
    std::vector<std::string> words = {"generate", "runs/adapted", "--json", "--prompt",
                                      "the cat",  "--max-tokens", "20",     "--log-probabilities",
                                      "--verify"};
    if (!layout.empty()) {
      folder_.write("l.toml", layout);
      words.insert(words.end(), {"--layout", "l.toml"});
    }
    const auto result = folder_.orthant(words);
    EXPECT_EQ(result.code, 0) << result.error;
    return result.output;
  };
  const std::string one = with("");
  EXPECT_EQ(with("[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n[plugins.expert]\nsize = 2\n"), one);
  EXPECT_EQ(with("[plugins.pipeline]\nsize = 2\n"), one);
  with("[plugins.tensor]\nsize = 2\n");
}

// A table of positions is as long as a sequence, and rows of a pass are cut among ranks beside it.
TEST_F(Generate, LearnedPositionsWhereRowsAreCut) {
  const auto trained =
      folder_.orthant({"launch", "c.toml", "--set", "model.positions=\"learned\"", "--set", "run.name=\"learned\""});
  ASSERT_EQ(trained.code, 0) << trained.error;
  for (const char* how : {"sequence_parallel = true", "experts = \"fold\""}) {
    folder_.write("l.toml", fmt::format("[plugins.tensor]\nsize = 2\n{}\n", how));
    const auto result = folder_.orthant({"generate", "runs/learned", "--json", "--prompt", "the cat", "--prompt", "a",
                                         "--max-tokens", "30", "--batch", "2", "--verify", "--layout", "l.toml"});
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_THAT(result.error, HasSubstr("verify: 26 of 26 log-probabilities and 64 of 64 choices"));
  }
}

// The first answer of a seed, greedy: cut where a stop text begins, wherever tokens end.
TEST_F(Generate, StopsAtATextOfSeveralTokens) {
  const std::vector<std::string> base = {"--prompt", "the ", "--temperature", "0", "--max-tokens", "40"};
  const std::string whole = answers(base).front()["text"];
  ASSERT_EQ(whole.size(), 40u);
  const std::string stop = whole.substr(12, 3);
  std::vector<std::string> words = base;
  words.insert(words.end(), {"--stop", "never in it", "--stop", stop});
  const json cut = answers(words).front();
  EXPECT_EQ(cut["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(cut["finish"], "stop");
}

TEST_F(Generate, OnePromptIsWrittenAsPlainText) {
  const std::vector<std::string> words = {"generate",      "runs/r", "--prompt",     "the ",
                                          "--temperature", "0",      "--max-tokens", "9"};
  const auto result = folder_.orthant(words);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(
      result.output,
      std::string(answers({"--prompt", "the ", "--temperature", "0", "--max-tokens", "9"}).front()["text"]) + "\n");
}

TEST_F(Generate, IdsNeedNoTokenizer) {
  folder_.write("ids.jsonl", "{\"ids\": [116, 104, 101, 32]}\n");
  const auto words = {"--temperature", "0", "--max-tokens", "9"};
  std::vector<std::string> by_ids = {"--prompts", "ids.jsonl", "--tokenizer", "none"}, by_text = {"--prompt", "the "};
  by_ids.insert(by_ids.end(), words.begin(), words.end());
  by_text.insert(by_text.end(), words.begin(), words.end());
  EXPECT_EQ(answers(by_ids).front()["tokens"], answers(by_text).front()["tokens"]);
}

TEST_F(Generate, RefusesBeforeItComputes) {
  EXPECT_THAT(refusal({}, 2), HasSubstr("--prompt"));
  EXPECT_THAT(refusal({"--prompt", ""}), HasSubstr("no token"));
  EXPECT_THAT(refusal({"--prompt", "a", "--top-p", "0"}), HasSubstr("top_p is 0"));
  EXPECT_THAT(refusal({"--prompt", "a", "--temperature", "-1"}), HasSubstr("temperature is -1"));
  EXPECT_THAT(refusal({"--prompt", "a", "--min-p", "2"}), HasSubstr("min_p is 2"));
  EXPECT_THAT(refusal({"--prompt", "a", "--stop", ""}), HasSubstr("empty stop string"));
  EXPECT_THAT(refusal({"--prompt", "a", "--tokenizer", "none"}), HasSubstr("ids"));
  EXPECT_THAT(refusal({"--prompt", "a", "--set", "moe.router=\"expert_choice\"", "--set", "moe.top_k=0"}),
              HasSubstr("expert_choice"));
  folder_.write("bad.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 3}\n");
  EXPECT_THAT(refusal({"--prompts", "bad.jsonl"}), HasSubstr("bad.jsonl:2"));
  folder_.write("bad_id.jsonl", "{\"ids\": [300]}\n");
  EXPECT_THAT(refusal({"--prompts", "bad_id.jsonl"}), HasSubstr("token 300"));
  for (const char* line : {"{\"ids\": [3], \"prompt\": \"a\"}", "{\"prompt\": \"a\", \"max_tokens\": 3}", "{}"}) {
    folder_.write("more.jsonl", line);
    EXPECT_THAT(refusal({"--prompts", "more.jsonl"}), HasSubstr("more.jsonl:1: expected 'prompt' or 'ids' alone"));
  }
  for (const char* seed : {"-1", "18446744073709551616", "1.5", ""}) {
    EXPECT_THAT(folder_.orthant({"generate", "runs/r", "--prompt", "a", "--seed", seed}).error,
                HasSubstr("expected 0 to 2^64 - 1"));
  }
}

TEST_F(Generate, EndsWithItsReader) {
  const auto result =
      folder_.command({"sh", "-c", paths::program() + " generate runs/r --prompt a --max-tokens 16000000 | head -c 5"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.output.size(), 5u);
  const auto ranks =
      folder_.command({"sh", "-c",
                       paths::program() + " generate runs/r --layout run --prompt a --max-tokens 16000000 "
                                          "| head -c 5"});
  EXPECT_EQ(ranks.code, 0) << ranks.error;
  EXPECT_EQ(ranks.output.size(), 5u);
}

// Another model than the one that was asked for is no answer, or at least not without a word.
TEST_F(Generate, SaysWhichModelAnswers) {
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "runs/r", "--prompt", "a", "--max-tokens", "1"});
    return folder_.orthant(more);
  };
  EXPECT_THAT(with({}).error, HasSubstr("reads " + folder_.checkpoint(5).string()));
  EXPECT_THAT(with({"--set", "model.layers=1"}).error, HasSubstr("has no place here"));
  const auto other = with({"--set", "moe.top_k=1"});
  EXPECT_EQ(other.code, 0) << other.error;
  EXPECT_THAT(other.error, HasSubstr("moe.top_k is 1 here, 2 where the model was trained"));
  const auto again = folder_.orthant({"launch", "c.toml", "--resume", "auto", "--set", "run.steps=7"});
  ASSERT_EQ(again.code, 0) << again.error;
  const std::filesystem::path file = folder_.checkpoint(7) / "rank_00000.safetensors";
  ASSERT_TRUE(std::filesystem::exists(file));
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-9, std::ios::end).put('\x55');
  const std::string said = with({}).error;
  EXPECT_THAT(said, AllOf(HasSubstr("checkpoint passed over"), HasSubstr("step_000005")));
}

}  // namespace
}  // namespace orthant::generate_test
