// A wait of which this process could not see a part, because it was held, is shorter by that.
#include <gtest/gtest.h>
#include <orthant/wait_time.h>

namespace orthant::wait_time_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(WaitTime, CountsFromTheFirstLook) {
  WaitTime time;
  const WaitTime::Clock::time_point begin = WaitTime::Clock::now();
  EXPECT_EQ(time.look(begin), 0);
  for (int i = 1; i <= 100; ++i) {
    EXPECT_NEAR(time.look(begin + i * milliseconds(50)), 0.05 * i, 1e-9);
  }
}

TEST(WaitTime, TimeInWhichTheProcessWasHeldDoesNotCount) {
  WaitTime time;
  WaitTime::Clock::time_point now = WaitTime::Clock::now();
  time.look(now);
  EXPECT_NEAR(time.look(now += milliseconds(300)), 0.3, 1e-9);
  EXPECT_NEAR(time.look(now += seconds(3600)), 1.3, 1e-9) << "suspended for an hour";
  EXPECT_NEAR(time.look(now += milliseconds(300)), 1.6, 1e-9);
}

}  // namespace
}  // namespace orthant::wait_time_test
