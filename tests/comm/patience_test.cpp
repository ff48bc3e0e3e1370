// How a rank waits where there are more ranks than cores: it hands its core on as long as that is answered in time.
#include <gtest/gtest.h>

#include "parallel/local/wait.h"

namespace orthant {
namespace {

constexpr int more_than_cores = 1 << 20;
constexpr std::int64_t in_time_ns = 20'000, late_ns = 3'000'000;

// The waits until the core is handed on again.
int rest_of(Patience& patience) {
  int waits = 0;
  while (patience.yields() == 0) {
    ++waits;
  }
  return waits;
}

TEST(Patience, OneRankOnItsCoreSpins) {
  Patience patience(1);
  EXPECT_GT(patience.spins(), 0);
  EXPECT_EQ(patience.yields(), 0);
}

TEST(Patience, RanksThatShareCoresHandThemOn) {
  Patience patience(more_than_cores);
  EXPECT_EQ(patience.spins(), 0);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_GT(patience.yields(), 0);
    patience.came_back(in_time_ns);
  }
}

TEST(Patience, OtherWorkThatTookTheCoreIsNotGivenItAgainForLongerAndLonger) {
  Patience patience(more_than_cores);
  patience.came_back(late_ns);
  const int first = rest_of(patience);
  EXPECT_GE(first, 1000);
  patience.came_back(late_ns);
  EXPECT_EQ(rest_of(patience), 2 * first);
  for (int i = 0; i < 20; ++i) {
    patience.came_back(late_ns);
    rest_of(patience);
  }
  patience.came_back(late_ns);
  EXPECT_LT(rest_of(patience), 1'000'000) << "other work ends one day";
}

TEST(Patience, ForgetsOtherWorkThatHasGone) {
  Patience patience(more_than_cores);
  patience.came_back(late_ns);
  const int first = rest_of(patience);
  patience.came_back(late_ns);
  rest_of(patience);
  for (int i = 0; i < 2000; ++i) {
    patience.came_back(in_time_ns);
  }
  patience.came_back(late_ns);
  EXPECT_EQ(rest_of(patience), first);
}

}  // namespace
}  // namespace orthant
