// grouped_gemm and grouped_gemm_tn. Which kernel: choose_kernels.h. A library's loop over experts needs the counts on
// the host; cuBLAS's grouped product needs them there too.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/expert_checks.h"
#include "experts/cuda/cutlass/cutlass_gemm.h"
#include "experts/cuda/expert_kernels.h"
#include "experts/cuda/plain/grouped_plain.h"

namespace orthant::cuda {
namespace {

#if defined(ORTHANT_HAVE_CUTLASS)
const CutlassKernel& cutlass_kernel(const GroupedProblem& p, const CudaDevice& device) {
#if defined(ORTHANT_HAVE_CUTLASS_BLACKWELL)
  if (device.architecture() != 90) {
    return blackwell_kernel(p.layout, choose_blackwell_tile(p, device.multiprocessors()));
  }
#endif
  return hopper_kernel(p.layout, choose_tile(p, device.multiprocessors()));
}

void multiply_by_cutlass(CudaStream& stream, const GroupedProblem& p) {
  const int multiprocessors = stream.cuda().multiprocessors();
  const CutlassKernel& kernel = cutlass_kernel(p, stream.cuda());
  void* const workspace = stream.scratch(0, kernel.workspace_bytes(p, multiprocessors));
  if (p.layout == GroupedLayout::tn && p.beta == 0) {
    zero_empty_experts(p, stream.handle());
  }
  try {
    kernel.run(p, multiprocessors, workspace, stream.handle());
  } catch (const Error& error) {
    fail("{} (kernel {})", error.what(), kernel.name);
  }
}
#else
void multiply_by_cutlass(CudaStream&, const GroupedProblem&) {
  fail("built without CUTLASS");
}
#endif

void run_products(CudaStream& stream, const GroupedProblem& p, DType in, DType out) {
  if (p.experts == 0) {
    return;
  }
  switch (choose_products(expert_means(stream.cuda()), p, in, out)) {
    case ExpertProducts::cutlass: return multiply_by_cutlass(stream, p);
    case ExpertProducts::wgmma: return wgmma_engine.multiply(stream, p, out, {}, {});
    case ExpertProducts::mma: return mma_engine.multiply(stream, p, out, {}, {});
    case ExpertProducts::plain: return grouped_plain(p, in, out, stream.handle());
  }
}

}  // namespace

void CudaStream::grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) {
  const GroupedShape shape = check_grouped_gemm(c, a, b, offset, how);
  run_products(*this,
               {.layout = how.transpose_b ? GroupedLayout::nt : GroupedLayout::nn,
                .experts = shape.experts,
                .rows = shape.rows,
                .n = shape.n,
                .k = shape.k,
                .beta = how.beta,
                .a = a.data(),
                .b = b.data(),
                .c = c.data(),
                .offset = offset.as<std::int32_t>()},
               a.dtype(), c.dtype());
}

void CudaStream::grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, float beta) {
  const GroupedShape shape = check_grouped_gemm_tn(c, a, b, offset, beta);
  run_products(*this,
               {.layout = GroupedLayout::tn,
                .experts = shape.experts,
                .rows = shape.rows,
                .m = shape.m,
                .n = shape.n,
                .beta = beta,
                .a = a.data(),
                .b = b.data(),
                .c = c.data(),
                .offset = offset.as<std::int32_t>()},
               a.dtype(), c.dtype());
}

}  // namespace orthant::cuda
