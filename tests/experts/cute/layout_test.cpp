// How operands lie in shared memory for Hopper's matrix instructions, and their descriptors, against CuTe's.
#include <gtest/gtest.h>

#include <cstddef>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

#include "experts/cuda/hopper/wgmma_layout.h"

namespace orthant::cuda {
namespace {

using namespace cute;
using Element = bfloat16_t;
using SM90::GMMA::Major;

// 256 rows (of m or n) and 64 steps of k, from an address that is a multiple of 1024.
alignas(1024) Element memory[256 * 64];

auto by_rows() {
  return make_tensor(make_smem_ptr(memory),
                     tile_to_shape(SM90::GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_256, _64>{}));
}
// Steps first, then the next 64 rows.
auto by_steps() {
  return make_tensor(make_smem_ptr(memory),
                     tile_to_shape(SM90::GMMA::Layout_MN_SW128_Atom<Element>{}, Shape<_256, _64>{}, Step<_2, _1>{}));
}

template <class Pointer>
std::ptrdiff_t byte_of(const Pointer& p) {
  return reinterpret_cast<const std::byte*>(raw_pointer_cast(p)) - reinterpret_cast<const std::byte*>(memory);
}

TEST(WgmmaLayoutOfCute, ElementsLieWhereOursDo) {
  const auto rows = by_rows();
  const auto steps = by_steps();
  for (int r = 0; r < 256; ++r) {
    for (int k = 0; k < 64; ++k) {
      ASSERT_EQ(byte_of(&rows(r, k)), at_line(r, k / 8) + k % 8 * 2) << r << ", " << k;
      ASSERT_EQ(byte_of(&steps(r, k)), at_line(r / 64 * 64 + k, r % 64 / 8) + r % 8 * 2) << r << ", " << k;
    }
  }
}

// The address is not known on the host: CuTe gives 0, and the offset from step to step is that of its tensors.
TEST(WgmmaLayoutOfCute, DescriptorsAreOurs) {
  const auto rows = by_rows();
  const auto steps = by_steps();
  for (int s = 0; s < 4; ++s) {
    const auto row_part = local_tile(rows, Shape<_256, _16>{}, make_coord(0, s));
    const auto step_part = local_tile(steps, Shape<_256, _16>{}, make_coord(0, s));
    const auto start = [](const auto& part) { return static_cast<std::uint64_t>(byte_of(part.data())) / 16; };
    EXPECT_EQ(SM90::GMMA::make_gmma_desc<Major::K>(row_part).desc_ + start(row_part),
              advanced(wgmma_operand(0, true), true, s * 16));
    EXPECT_EQ(SM90::GMMA::make_gmma_desc<Major::MN>(step_part).desc_ + start(step_part),
              advanced(wgmma_operand(0, false), false, s * 16));
  }
}

}  // namespace
}  // namespace orthant::cuda
