// Blocks of the host's memory: which are handed out again.
#include <gtest/gtest.h>

#include "core/device/cpu/allocator.h"

namespace orthant {
namespace {

#if !defined(__SANITIZE_ADDRESS__)

constexpr std::size_t mega = std::size_t{1} << 20;

TEST(Allocator, LendsALargerBlockWhereNoneOfTheSizeIsFree) {
  CachingAllocator allocator;
  void* const large = allocator.allocate(8 * mega);
  allocator.release(large, 8 * mega);
  void* const lent = allocator.allocate(5 * mega);
  EXPECT_EQ(lent, large);
  void* const other = allocator.allocate(8 * mega);
  EXPECT_NE(other, large) << "it is in use";
  allocator.release(lent, 5 * mega);
  // It is of its own class again, and whole.
  void* const again = allocator.allocate(8 * mega);
  EXPECT_EQ(again, large);
  static_cast<char*>(again)[8 * mega - 1] = 1;
  allocator.release(again, 8 * mega);
  allocator.release(other, 8 * mega);
}

TEST(Allocator, LendsNoBlockOfMoreThanTwiceTheSizeNorToSmallOnes) {
  CachingAllocator allocator;
  void* const large = allocator.allocate(8 * mega);
  allocator.release(large, 8 * mega);
  void* const less = allocator.allocate(3 * mega);
  EXPECT_NE(less, large);
  void* const small = allocator.allocate(8192);
  allocator.release(small, 8192);
  void* const smaller = allocator.allocate(5000);
  EXPECT_NE(smaller, small);
  allocator.release(smaller, 5000);
  allocator.release(less, 3 * mega);
}

#endif

}  // namespace
}  // namespace orthant
