// Standard streams that are closed, full or without a reader: no reason to die, nor to end with another code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::streams_test {
namespace {

using testing::HasSubstr;

// How a shell gives a program a stream N of that kind.
struct Broken {
  const char* name;
  const char* redirection;
};

class BrokenStreams : public testing::TestWithParam<Broken> {
 protected:
  BrokenStreams() { folder_.write("c.toml", tiny_config({2, 1})); }

  // `orthant WORDS`, with the streams `which` ("2", "1 2") broken.
  Result orthant(const std::string& words, const std::string& which) {
    std::string redirections;
    for (const char stream : which) {
      if (stream != ' ') {
        std::string one = GetParam().redirection;
        one.replace(one.find('N'), 1, 1, stream);
        redirections += " " + one;
      }
    }
    // A pipe whose reader has come and gone.
    const std::string gone = "exec 7> >(exec true); wait $!; ";
    return folder_.command({"bash", "-c", gone + "exec '" + paths::program() + "' " + words + redirections});
  }
  ProgramFolder folder_;
};

TEST_P(BrokenStreams, TrainingGoesOnToItsEnd) {
  const Result result = orthant("launch c.toml", "1 2");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(std::filesystem::exists(folder_.checkpoint(8)));
  EXPECT_THAT(orthant::launch_test::read_file(folder_.run() / "logs/rank_0.log"), HasSubstr("done: 8 steps"));
  // None of the run's files was taken for the closed stream.
  for (const std::string& line : lines_of(folder_.run() / "metrics.jsonl")) {
    EXPECT_TRUE(line.starts_with("{") && line.ends_with("}")) << line;
  }
}

TEST_P(BrokenStreams, TheExitCodeIsThatOfTheFailure) {
  EXPECT_EQ(orthant("launch c.toml --set optimizer.lr=1e30", "1 2").code, 1);
  EXPECT_EQ(orthant("launch c.toml --set run.nonsense=1", "2").code, 78);
  EXPECT_EQ(orthant("config missing.toml", "2").code, 78);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BrokenStreams,
                         testing::Values(Broken{"Closed", "N>&-"}, Broken{"Full", "N>/dev/full"},
                                         Broken{"WithoutReader", "N>&7"}),
                         [](const auto& kind) { return kind.param.name; });

// What such a command prints is what it was run for.
TEST(LostOutput, OfACommandThatOnlyPrintsIsAnError) {
  const ProgramFolder folder;
  folder.write("c.toml", tiny_config({2, 1}));
  for (const std::string words : {"config --keys", "launch --dry-run c.toml"}) {
    for (const std::string target : {" >/dev/full", " >&-"}) {
      const Result result = folder.command({"bash", "-c", "'" + paths::program() + "' " + words + target});
      EXPECT_EQ(result.code, 1) << words << target;
      EXPECT_THAT(result.error, HasSubstr("the standard output could not be written to its end"));
    }
  }
  const Result head =
      folder.command({"bash", "-c", "exec 7> >(exec true); wait $!; '" + paths::program() + "' config --keys >&7"});
  EXPECT_EQ(head.code, 0) << head.error;
  EXPECT_EQ(head.error, "");
}

// Shared memory of the usual, sparse size would be larger than such a shell lets files or address spaces be.
TEST(ShellLimits, OnFilesAndAddressSpaceLeaveRoomForSharedMemory) {
  const ProgramFolder folder;
  folder.write("c.toml", tiny_config({2, 1}));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::vector<std::string> limits = {"-f 500000"};
#else
  const std::vector<std::string> limits = {"-f 500000", "-v 8000000"};
#endif
  for (const std::string& limit : limits) {
    const Result result = folder.command(
        {"bash", "-c", "ulimit " + limit + "; exec '" + paths::program() + "' launch c.toml --set run.steps=1"});
    EXPECT_EQ(result.code, 0) << limit << result.error;
  }
  const Result none = folder.command({"bash", "-c", "ulimit -f 100; exec '" + paths::program() + "' launch c.toml"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.error, HasSubstr("(is 'ulimit -f' set?)"));
}

}  // namespace
}  // namespace orthant::run_test::streams_test
