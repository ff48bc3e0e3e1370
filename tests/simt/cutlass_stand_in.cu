// What CUTLASS's kernels for Hopper do, for the device "simt": products of groups whose shapes, strides and addresses
// are read on the device, as describe_products.h writes them. Nothing else of a problem is looked at but its beta.
#include <cuda_bf16.h>

#include "core/device/cuda/launch.h"
#include "experts/cuda/cutlass/cutlass_gemm.h"

namespace orthant::cuda {
namespace {

template <GroupedLayout layout>
__global__ void multiply_groups(GroupArrays groups, std::int64_t experts, float beta) {
  constexpr bool tn = layout == GroupedLayout::tn, nt = layout == GroupedLayout::nt;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t g = 0; g < experts; ++g) {
    const auto [m, n, k] = groups.shape[g];
    const auto* const a = static_cast<const __nv_bfloat16*>(groups.a[g]);
    const auto* const b = static_cast<const __nv_bfloat16*>(groups.b[g]);
    for (std::int64_t i = first; i < std::int64_t{m} * n; i += std::int64_t{gridDim.x} * blockDim.x) {
      const std::int64_t row = i / n, column = i % n;
      float sum = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        sum += __bfloat162float(a[tn ? j * groups.stride_a[g] + row : row * groups.stride_a[g] + j]) *
               __bfloat162float(b[nt ? column * groups.stride_b[g] + j : j * groups.stride_b[g] + column]);
      }
      const std::int64_t at = row * groups.stride_c[g] + column;
      if constexpr (tn) {
        float* const c = static_cast<float*>(groups.c[g]);
        c[at] = beta == 0 ? sum : beta * c[at] + sum;
      } else {
        static_cast<__nv_bfloat16*>(groups.c[g])[at] = __float2bfloat16_rn(sum);
      }
    }
  }
}

std::size_t workspace_bytes(const GroupedProblem&, int) {
  return 256;
}

template <GroupedLayout layout>
void multiply(const CudaStream& stream, const GroupedProblem& p, const GroupArrays& groups, void*) {
  launch(multiply_groups<layout>, Grid{4, 64}, stream.handle(), groups, p.experts, p.beta);
}

constexpr CutlassKernel nt = {"nt stand-in", workspace_bytes, multiply<GroupedLayout::nt>};
constexpr CutlassKernel nn = {"nn stand-in", workspace_bytes, multiply<GroupedLayout::nn>};

}  // namespace

const CutlassKernel hopper_nt_large = nt, hopper_nt_overlapped = nt, hopper_nt_square = nt, hopper_nt_small = nt;
const CutlassKernel hopper_nn_large = nn, hopper_nn_overlapped = nn, hopper_nn_square = nn, hopper_nn_small = nn;
const CutlassKernel hopper_tn_large = {"tn stand-in", workspace_bytes, multiply<GroupedLayout::tn>};

}  // namespace orthant::cuda
