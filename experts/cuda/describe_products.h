// What pointer-array kernels read of the experts' products: each expert's shape, strides and addresses, written on the
// device from the offsets that lie there. One launch describes all products of a pass.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <span>

#include "core/device/cuda/cuda_stream.h"
#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// One product's, of `experts` groups each, beginning at multiples of 256 bytes. A group without rows has the shape
// 0 x 0 x 1, and so no tiles: TMA takes no empty extent, and with k = 0 CUTLASS 4.2's kernels would store what the
// registers held (its issues 2547 and 2674).
struct GroupArrays {
  std::array<std::int32_t, 3>* shape = nullptr;                                // m, n, k
  std::int64_t *stride_a = nullptr, *stride_b = nullptr, *stride_c = nullptr;  // RowStrides, in elements
  const void **a = nullptr, **b = nullptr;
  void** c = nullptr;
};

// The products of a pass, described. Lives as long as they run or longer: its memory is taken back in the stream's
// order.
class DescribedProducts {
 public:
  static constexpr std::size_t most = 4;

  // Enqueues the description. All products have the same experts and offsets, which the device reads; their c are bf16,
  // and f32 of tn. It also makes zero what no product will write: c of tn with beta = 0 of the experts without rows,
  // and all of `zeros` (f32), where that is defined.
  DescribedProducts(CudaStream& stream, std::span<const GroupedProblem> products, const Tensor& zeros = {});

  const GroupArrays& operator[](std::size_t product) const { return arrays_.at(product); }

 private:
  Tensor memory_;
  std::array<GroupArrays, most> arrays_;
};

}  // namespace orthant::cuda
