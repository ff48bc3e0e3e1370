// e^x of vectors against the C library.
#include "core/device/cpu/tile_exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace orthant::test::tile_exp_test {
namespace {

float one(float x) {
  return tile::exp_below(x - tile::Vector{})[0];
}

TEST(TileExp, IsThatOfTheLibrary) {
  for (float x = -87.0f; x < 80.0f; x += 0.0137f) {
    const double expected = std::exp(static_cast<double>(x));
    ASSERT_NEAR(one(x) / expected, 1.0, 4e-7) << x;
  }
  EXPECT_EQ(one(0.0f), 1.0f);
}

// A weight of a key that is not seen adds nothing; what is not a number stays so.
TEST(TileExp, IsZeroFarBelow) {
  EXPECT_EQ(one(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(one(-1e30f), 0.0f);
  EXPECT_EQ(one(-88.0f), 0.0f);
  EXPECT_TRUE(std::isnan(one(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace orthant::test::tile_exp_test
