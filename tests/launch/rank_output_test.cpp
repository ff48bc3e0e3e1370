#include "parallel/launch/rank_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <array>

#include "tests/support/run_supervisor.h"

namespace orthant::launch_test {
namespace {

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
  RankOutput zero(0, console, folder.path() / "0", false);
  RankOutput one(1, console, folder.path() / "1", false);

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
  RankOutput zero(0, console, folder.path() / "0", false);
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
  RankOutput zero(0, console, folder.path() / "0", false);
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
  RankOutput output(2, console, folder.path() / "2", false);
  for (int i = 1; i <= 50; ++i) {
    output.feed_output("line " + std::to_string(i) + "\n");
  }
  close(file);
  ASSERT_EQ(output.tail().size(), 20u);
  EXPECT_EQ(output.tail().front(), "line 31");
  EXPECT_EQ(output.tail().back(), "line 50");
}

}  // namespace
}  // namespace orthant::launch_test
