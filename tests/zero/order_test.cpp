// What the order of one step foretells of the next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <orthant/acquire_order.h>

namespace orthant::order_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> ahead(const AcquireOrder& order) {
  return {order.ahead().begin(), order.ahead().end()};
}

void run(AcquireOrder& order, std::initializer_list<int> ids) {
  for (int id : ids) {
    order.acquired(id);
  }
}

TEST(AcquireOrder, IsKnownFromTheSecondStepOn) {
  AcquireOrder order;
  run(order, {0, 1, 2, 2, 1, 0});
  EXPECT_THAT(ahead(order), IsEmpty());
  order.end_step();
  order.acquired(0);
  EXPECT_THAT(ahead(order), ElementsAre(1, 2, 2, 1, 0));
  run(order, {1, 2, 2, 1});
  EXPECT_THAT(ahead(order), ElementsAre(0));
  order.acquired(0);
  EXPECT_THAT(ahead(order), IsEmpty());
  order.end_step();
  order.acquired(0);
  EXPECT_THAT(ahead(order), ElementsAre(1, 2, 2, 1, 0));
}

// A validation goes forward only, again and again.
TEST(AcquireOrder, PassesBetweenStepsAreFollowedFromTheirStart) {
  AcquireOrder order;
  run(order, {0, 1, 2, 2, 1, 0});
  order.end_step();
  run(order, {0, 1, 2, 0, 1});
  EXPECT_THAT(ahead(order), ElementsAre(2, 2, 1, 0));
  run(order, {2, 0, 1, 2, 2, 1});
  EXPECT_THAT(ahead(order), ElementsAre(0));
}

TEST(AcquireOrder, ValidationsHaveOneOfTheirOwn) {
  AcquireOrder order;
  for (int time = 0; time < 2; ++time) {
    run(order, {0, 1, 2, 2, 1, 0});
    order.end_step();
    for (const int id : {0, 1, 2}) {
      order.acquired(id, false);
    }
  }
  EXPECT_THAT(ahead(order), ElementsAre());  // its end, not the backward pass
  order.acquired(0);
  EXPECT_THAT(ahead(order), ElementsAre(1, 2, 2, 1, 0));
  run(order, {1, 2, 2, 1, 0});
  order.end_step();
  order.acquired(0, false);
  EXPECT_THAT(ahead(order), ElementsAre(1, 2));
}

TEST(AcquireOrder, AnotherWayIsGoneWithoutForesightAndThenKnown) {
  AcquireOrder order;
  run(order, {0, 1, 2, 3});
  order.end_step();
  run(order, {0, 2});
  EXPECT_THAT(ahead(order), IsEmpty());
  run(order, {1, 3});
  EXPECT_THAT(ahead(order), IsEmpty());
  order.end_step();
  order.acquired(0);
  EXPECT_THAT(ahead(order), ElementsAre(2, 1, 3));
}

}  // namespace
}  // namespace orthant::order_test
