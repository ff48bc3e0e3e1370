// The program itself: exit codes and streams of `orthant config`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/config/temporary_folder.h"
#include "tests/support/paths.h"

namespace orthant::program_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  int code = -1;
  std::string output;  // what the command leaves on its standard output
};

Outcome orthant(const std::string& arguments) {
  Outcome outcome;
  std::FILE* pipe = popen(("'" + paths::program() + "' " + arguments).c_str(), "r");
  std::array<char, 4096> chunk;
  for (std::size_t n = 0; pipe != nullptr && (n = std::fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) {
    outcome.output.append(chunk.data(), n);
  }
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(paths::program())) << "build the target orthant_program";
    good_ = "'" + folder_.write("good.toml", "[data]\nsource = \"synthetic\"\n[run]\nname = \"r\"\n") + "'";
  }
  TemporaryFolder folder_;
  std::string good_;
};

TEST_F(Program, AGoodConfigurationIsSummarised) {
  const Outcome outcome = orthant("config " + good_ + " --set run.steps=12 --set model.layers=3");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, StartsWith("ok: "));
  EXPECT_THAT(outcome.output, HasSubstr("12 steps"));
  EXPECT_THAT(outcome.output, HasSubstr("3 layers"));
}

// Recipes name files of this repository and plugins; a moved page must not break the first command of the README.
TEST_F(Program, EveryRecipeOfConfigsLoads) {
  const std::string text = "'" + folder_.write("text.txt", std::string(100000, 'a')) + "'";
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(paths::source("configs"))) {
    if (entry.path().extension() == ".toml") {
      const bool own_text =
          entry.path().filename() == "quickstart.toml" || entry.path().stem().string().starts_with("bench");
      const Outcome outcome =
          orthant("config '" + entry.path().string() + "'" + (own_text ? "" : " --set data.path=" + text) + " 2>&1");
      EXPECT_EQ(outcome.code, 0) << outcome.output;
      ++recipes;
    }
  }
  EXPECT_GE(recipes, 4);
}

TEST_F(Program, ABadConfigurationExitsWith78AndSaysWhyOnStderr) {
  const Outcome silent = orthant("config " + good_ + " --set run.steps=0 2>/dev/null");
  EXPECT_EQ(silent.code, 78);
  EXPECT_EQ(silent.output, "");
  EXPECT_THAT(
      orthant("config " + good_ + " --set run.steps=0 2>&1").output,
      StartsWith("orthant: the configuration has 1 error\n\n--set:1:11: [run] steps: 0 is below the minimum 1\n"));
  EXPECT_EQ(orthant("config /nowhere/none.toml 2>/dev/null").code, 78);
}

// docs/guides/cluster.md: 2 for words that are no usage, 78 for input that is refused.
TEST_F(Program, CodesOfRefusalsAreThoseOfTheDocuments) {
  const std::string config = " " + good_ + " ";
  const std::pair<std::string, int> expected[] = {
      {"config", 2},
      {"plan" + config + "--rank -1", 2},
      {"plan" + config + "--rank 9", 78},
      {"plan" + config + "--schedule --svg /nowhere/x.svg", 78},
      {"plan" + config + "--schedule --svg /tmp", 78},
      {"launch" + config + "--nproc 0 --dry-run", 78},
      {"launch" + config + "--nproc 99 --dry-run", 78},
      {"launch" + config + "--max-restarts -1", 2},
      {"train", 2},
      {"train" + config + "--resume ''", 2},
      {"verify" + config + "--steps 0", 2},
      {"bench step" + config + "--steps 0", 2},
      {"bench compare a", 2},
      {"bench compare /nowhere /nowhere", 78},
      {"bench expert-scaling", 2},
      {"bench expert-scaling /nowhere/study.toml", 78},
      {"bench peer-data" + config, 2},
      {"data prepare /nowhere/a.txt --threads 2000 -o x", 2},
      {"data prepare /nowhere/a.txt -o /nowhere/x", 78},
      {"data check", 2},
      {"data check /nowhere/x", 78},
      {"data tokenizer /nowhere/a.txt -o x.model --vocab-size 1", 2},
      {"export /nowhere", 2},
      {"import /nowhere", 2},
      {"upcycle /nowhere -o x", 2},
      {"distil /nowhere", 2},
      {"generate /nowhere", 2},
      {"generate /nowhere --prompt a --max-tokens 0", 2},
      {"eval /nowhere", 2},
      {"eval /nowhere a.txt --length 0", 2},
      {"serve /nowhere --port 70000", 2},
      {"plugins --only late", 2},
      {"report", 2},
      {"report . -o /nowhere/x.html", 78},
      {"report . -o /tmp", 78},
      {"route /nowhere --ranks 0", 2},
      {"route /nowhere", 78},
  };
  for (const auto& [words, code] : expected) {
    const Outcome refused = orthant(words + " 2>&1");
    EXPECT_EQ(refused.code, code) << words << "\n" << refused.output;
    EXPECT_EQ(refused.output.find("internal error"), std::string::npos) << words << "\n" << refused.output;
  }
}

// What cannot be said is no failure.
TEST_F(Program, AFullStandardErrorEndsNoCommand) {
  folder_.write("libmine.so", "not asked");
  const std::string named =
      folder_.write("named.toml", "[data]\nsource = \"synthetic\"\n[plugins.mine]\npath = \"libmine.so\"\n");
  const Outcome shown = orthant("config '" + named + "' 2>/dev/full");
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.output, HasSubstr("plugin  mine, not checked"));
}

// Also what does not divide, which the plugins find.
TEST_F(Program, EveryMistakeIsReportedAtOnceWithItsPlace) {
  const std::string layout = "[batch]\nsequences = 8\n[plugins.data]\nsize = 3\n";
  const std::string file =
      "'" + folder_.write("bad.toml", "[run]\nnmae = \"x\"\n[data]\npath = [\"nowhere.txt\"]\n" + layout) + "'";
  for (const char* command : {"config ", "launch ", "plan ", "train "}) {
    EXPECT_THAT(
        orthant(command + file + " 2>&1").output,
        testing::AllOf(HasSubstr("3 errors"), HasSubstr("bad.toml:2:1: unknown key 'nmae'"),
                       HasSubstr("bad.toml:4:9: [data] path"), HasSubstr("bad.toml:8:8: 8 units of dim 'batch'")))
        << command;
  }
  // Beside what only the start finds.
  const std::string device =
      "'" + folder_.write("device.toml", "[run]\ndevice = \"abacus\"\n[data]\nsource = \"synthetic\"\n" + layout) + "'";
  EXPECT_THAT(orthant("launch " + device + " 2>&1").output,
              testing::AllOf(HasSubstr("2 errors"), HasSubstr("device.toml:2:10: "), HasSubstr("device.toml:8:8: ")));
}

// A key that nobody wrote: beside one that somebody did.
TEST_F(Program, AMistakeOfADefaultHasAPlaceToo) {
  EXPECT_THAT(
      orthant("config " + good_ + " --set 'lora.targets=\"x\"' 2>&1").output,
      testing::AllOf(HasSubstr("--set:1:14: lora.rank: 0 makes no adapters"), HasSubstr("    = write rank = 8")));
}

TEST_F(Program, ConversationsArePackedAndPlainInBytesUnlessSaidOtherwise) {
  folder_.write("chat.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  const std::string file =
      "'" + folder_.write("chat.toml", "[data]\nsource = \"chat\"\npath = [\"chat.jsonl\"]\n") + "'";
  const Outcome resolved = orthant("config --resolved " + file);
  EXPECT_EQ(resolved.code, 0);
  EXPECT_THAT(resolved.output,
              testing::AllOf(HasSubstr("documents = \"packed\""), HasSubstr("chat_template = \"plain\"")));
  EXPECT_EQ(orthant("config " + file + " --set data.documents=stream 2>/dev/null").code, 78);
}

TEST_F(Program, AModelThatIsNotThereExitsWith78) {
  for (const char* words : {"eval /nowhere a.txt", "generate /nowhere --prompt a", "serve /nowhere",
                            "export /nowhere -o out", "upcycle /nowhere --experts 2 -o out", "distil /nowhere -o out",
                            "import /nowhere -o out", "report /nowhere", "route /nowhere"}) {
    const Outcome refused = orthant(std::string(words) + " 2>&1");
    EXPECT_EQ(refused.code, 78) << words;
    EXPECT_THAT(refused.output, HasSubstr("/nowhere")) << words;
  }
}

TEST_F(Program, WrongUsageExitsWith2) {
  EXPECT_EQ(orthant("2>/dev/null").code, 2);
  EXPECT_EQ(orthant("confgi 2>/dev/null").code, 2);
  for (const char* words : {"confgi --help", "confgi -h", "data prepair --help", "--help confgi", "confgi --version"}) {
    const Outcome refused = orthant(std::string(words) + " 2>&1 >/dev/null");
    EXPECT_EQ(refused.code, 2) << words;
    EXPECT_THAT(refused.output, testing::AnyOf(HasSubstr("not expected: "), HasSubstr("did you mean 'config'?")))
        << words;
  }
  EXPECT_THAT(orthant("launch c.toml --max-restart 2 2>&1").output,
              HasSubstr("orthant: not expected: --max-restart 2: did you mean '--max-restarts'?"));
  EXPECT_THAT(orthant("launch 2>&1").output, HasSubstr("orthant: CONFIG is required"));
  // Variables of a shell that were not set.
  for (const char* words :
       {"generate '' --prompt a", "export '' -o out", "export a -o ''", "report ''", "plugins --check ''",
        "launch c.toml --hostfile ''", "launch c.toml --resume ''", "route r --capacity-factor ''"}) {
    EXPECT_EQ(orthant(std::string(words) + " 2>/dev/null").code, 2) << words;
  }
  EXPECT_EQ(orthant("data --help").code, 0);
  EXPECT_EQ(orthant("data prepare --help").code, 0);
  EXPECT_EQ(orthant("config --resolved --schema " + good_ + " 2>/dev/null").code, 2);
}

TEST_F(Program, PrintsVersionHelpResolvedAndSchema) {
  EXPECT_THAT(orthant("--version").output, StartsWith("orthant 0."));
  EXPECT_EQ(orthant("config --help").code, 0);
  EXPECT_THAT(orthant("config " + good_ + " --resolved").output, HasSubstr("\nname = \"r\" "));
  EXPECT_THAT(orthant("config --schema").output, StartsWith("{\n"));
  EXPECT_THAT(orthant("config " + good_ + " --schema").output, StartsWith("{\n"));
  EXPECT_EQ(orthant("config " + good_ + " --resolved > /dev/full 2>/dev/null").code, 1);
}

}  // namespace
}  // namespace orthant::program_test
