#include "core/base/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::output_test {
namespace {

class OutputSinkTest : public testing::Test {
 protected:
  OutputSinkTest() {
    signal(SIGPIPE, SIG_IGN);
    [[maybe_unused]] const int made = pipe(ends_.data());
  }
  ~OutputSinkTest() override {
    signal(SIGPIPE, SIG_DFL);
    close(ends_[0]);
    close(ends_[1]);
  }
  int writing() const { return ends_[1]; }
  // All that the sink can bring to the pipe.
  std::string read_all(OutputSink& sink) {
    std::string text;
    std::array<char, 1 << 16> buffer{};
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    for (;;) {
      sink.flush();
      const ssize_t count = read(ends_[0], buffer.data(), buffer.size());
      if (count <= 0) {
        return text;
      }
      text.append(buffer.data(), static_cast<std::size_t>(count));
    }
  }
  std::array<int, 2> ends_{};
};

TEST_F(OutputSinkTest, NeverWaitsForAReaderAndDropsWholeLinesAtOnePlace) {
  OutputSink sink(writing());
  constexpr std::size_t length = 52;
  std::string all;
  for (int i = 0; i < 20000; ++i) {
    const std::string line = fmt::format("line {:06} of many, which nobody reads for a while\n", i);
    ASSERT_EQ(line.size(), length);
    all += line;
    sink.write(line);
  }
  sink.write("what matters\n", true);
  EXPECT_EQ(sink.take_dropped(), 0) << "there is no room to say so yet";
  EXPECT_EQ(fcntl(writing(), F_GETFL) & O_NONBLOCK, 0) << "the description belongs to others as well";

  const std::string seen = read_all(sink);
  EXPECT_EQ(sink.waiting(), 0u);
  ASSERT_TRUE(seen.ends_with("\nwhat matters\n"));
  const std::string lines = seen.substr(0, seen.size() - 13);
  EXPECT_TRUE(all.starts_with(lines)) << "only whole lines, and those in order";
  EXPECT_GT(lines.size(), OutputSink::capacity - 100);
  EXPECT_EQ(sink.take_dropped(), static_cast<std::int64_t>((all.size() - lines.size()) / length));
  sink.write("goes again\n");
  EXPECT_EQ(read_all(sink), "goes again\n");
}

TEST_F(OutputSinkTest, AReaderThatIsGoneIsNoError) {
  OutputSink sink(writing());
  close(ends_[0]);
  sink.write("unheard\n");
  sink.write("again\n");
  EXPECT_EQ(sink.waiting(), 0u);
  OutputSink never(writing());
  never.write("unheard\n");
  EXPECT_EQ(never.waiting(), 0u);
  OutputSink closed(-1);
  closed.write("unheard\n");
  EXPECT_EQ(closed.waiting(), 0u);
}

TEST_F(OutputSinkTest, AFullDiskIsTriedAgainAndNotPolled) {
  const int full = open("/dev/full", O_WRONLY);
  OutputSink sink(full);
  sink.write("a line\n");
  EXPECT_EQ(sink.waiting(), 7u);
  EXPECT_EQ(sink.poll_descriptor(), -1);
  sink.drain(1000);  // returns at once
  close(full);
}

}  // namespace
}  // namespace orthant::launch_test::output_test
