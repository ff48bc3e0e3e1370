// grouped_gemm and grouped_gemm_tn. Which kernel: choose_kernels.h. A library's loop over experts needs the counts on
// the host; cuBLAS's grouped product needs them there too.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/expert_checks.h"
#include "experts/cuda/cutlass_products.h"
#include "experts/cuda/expert_kernels.h"
#include "experts/cuda/plain/grouped_plain.h"

namespace orthant::cuda {
namespace {

void run_products(CudaStream& stream, const GroupedProblem& p, DType in, DType out) {
  if (p.experts == 0) {
    return;
  }
  switch (choose_products(expert_means(stream.cuda()), p, in, out)) {
    case ExpertProducts::cutlass: return multiply_by_cutlass(stream, p, DescribedProducts(stream, {&p, 1})[0]);
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
