#include "parallel/launch/rank_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::rank_output_test {
namespace {

using testing::HasSubstr;

// A pseudo-terminal without output processing: what is written to terminal() is read, byte for byte, by shown().
class Terminal {
 public:
  Terminal() : outer_(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    grantpt(outer_);
    unlockpt(outer_);
    inner_ = open(ptsname(outer_), O_RDWR | O_NOCTTY);
    termios settings{};
    tcgetattr(inner_, &settings);
    cfmakeraw(&settings);
    tcsetattr(inner_, TCSANOW, &settings);
  }
  ~Terminal() {
    close(inner_);
    close(outer_);
  }
  int terminal() const { return inner_; }
  // What was shown since the last call, up to `ending`: a terminal passes on what is written a moment later.
  std::string shown(const std::string& ending) {
    std::string text;
    eventually([&] {
      std::array<char, 4096> buffer{};
      const ssize_t count = read(outer_, buffer.data(), buffer.size());
      text.append(buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
      return text.ends_with(ending);
    });
    return text;
  }

 private:
  int outer_;
  int inner_ = -1;
};

TEST(RankOutput, OnATerminalProgressOfRankZeroPassesThroughAndLinesGoAboveIt) {
  TemporaryFolder folder;
  Terminal terminal;
  Console console(terminal.terminal(), terminal.terminal());
  EXPECT_GT(console.columns(), 0);
  RankLines lines(console);
  RankOutput zero(0, lines, folder.path() / "0", false);
  RankOutput one(1, lines, folder.path() / "1", false);

  zero.feed_output("\rstep 1/9");
  EXPECT_EQ(terminal.shown("1/9"), "\r\x1b[Kstep 1/9");
  one.feed_error("careful\n");
  EXPECT_EQ(terminal.shown("1/9"), "\r\x1b[K[r1] careful\nstep 1/9");
  zero.feed_output("\rstep 2");
  zero.feed_output("/9");
  const std::string shown = terminal.shown("2/9");
  EXPECT_TRUE(shown.ends_with("\r\x1b[Kstep 2/9")) << shown;
  zero.feed_output("\rstep 9/9 done\n");
  EXPECT_TRUE(terminal.shown("done\n").ends_with("\r\x1b[K[r0] step 9/9 done\n"));
  EXPECT_EQ(read_file(folder.path() / "0"), "step 9/9 done\n");
}

TEST(RankOutput, PlainOutputHasNoProgressEvenOnATerminal) {
  TemporaryFolder folder;
  Terminal terminal;
  Console console(terminal.terminal(), terminal.terminal(), true);
  EXPECT_EQ(console.columns(), 0);
  RankLines lines(console);
  RankOutput zero(0, lines, folder.path() / "0", false);
  zero.feed_output("\rstep 1/9");
  zero.feed_error("careful\n");
  zero.feed_output("\rlast\n");
  EXPECT_EQ(terminal.shown("last\n"), "[r0] careful\n[r0] last\n");
}

TEST(RankOutput, ElsewhereProgressIsDroppedAndLinesArePlain) {
  TemporaryFolder folder;
  const int file = open((folder.path() / "out").c_str(), O_WRONLY | O_CREAT, 0600);
  Console console(file, file);
  EXPECT_EQ(console.columns(), 0);
  RankLines lines(console);
  RankOutput zero(0, lines, folder.path() / "0", false);
  zero.feed_output("\rstep 1/9\rstep 2/9");
  zero.feed_output("\rlast\nplain\r\nhalf ");
  zero.feed_error("between\n");
  zero.feed_output("a line");
  zero.finish();
  close(file);
  EXPECT_EQ(read_file(folder.path() / "out"), "[r0] last\n[r0] plain\n[r0] between\n[r0] half a line\n");
}

TEST(RankOutput, KeepsTheLastTwentyLines) {
  TemporaryFolder folder;
  const int file = open("/dev/null", O_WRONLY);
  Console console(file, file);
  RankLines lines(console);
  RankOutput output(2, lines, folder.path() / "2", false);
  for (int i = 1; i <= 50; ++i) {
    output.feed_output("line " + std::to_string(i) + "\n");
  }
  close(file);
  ASSERT_EQ(output.tail().size(), 20u);
  EXPECT_EQ(output.tail().front(), "line 31");
  EXPECT_EQ(output.tail().back(), "line 50");
}

TEST(RankOutput, ALogThatCannotBeWrittenIsSaidOnceAndLinesAreShownAllTheSame) {
  TemporaryFolder folder;
  const int file = open((folder.path() / "out").c_str(), O_WRONLY | O_CREAT, 0600);
  Console console(file, file);
  RankLines lines(console);
  RankOutput output(1, lines, "/dev/full", true);
  output.feed_output("one\ntwo\n");
  close(file);
  EXPECT_EQ(read_file(folder.path() / "out"),
            "launch: cannot write /dev/full: No space left on device; the training goes on, lines of its log are lost\n"
            "[r1] one\n[r1] two\n");
}

// A pipe that nobody reads for a while.
TEST(Console, DropsLinesOfRanksButNoneOfItsOwnAndTellsHowMany) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  Console console(ends[1], ends[1]);
  const std::string long_line(1000, 'x');
  for (int i = 0; i < 1000; ++i) {
    console.output_line(long_line);
  }
  console.say("rank 1 failed first");
  EXPECT_GT(console.waiting(), 0u);
  std::string seen;
  std::array<char, 1 << 16> buffer{};
  for (ssize_t count = 1; count > 0; console.flush()) {
    count = read(ends[0], buffer.data(), buffer.size());
    seen.append(buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  console.output_line("goes on");
  const ssize_t rest = read(ends[0], buffer.data(), buffer.size());
  seen.append(buffer.data(), rest > 0 ? static_cast<std::size_t>(rest) : 0);
  const std::size_t shown = static_cast<std::size_t>(std::count(seen.begin(), seen.end(), '\n')) - 3;
  EXPECT_THAT(seen, HasSubstr("launch: rank 1 failed first\n"));
  EXPECT_THAT(seen, HasSubstr("launch: " + std::to_string(1000 - shown) + " lines are missing here"));
  EXPECT_TRUE(seen.ends_with("goes on\n"));
  close(ends[0]);
  close(ends[1]);
}

TEST(RankPrefix, NamesRunsOfRanks) {
  EXPECT_EQ(rank_prefix({3}), "[r3] ");
  EXPECT_EQ(rank_prefix({5, 0, 2, 1, 0}), "[r0-r2 r5] ");
}

}  // namespace
}  // namespace orthant::launch_test::rank_output_test
