// Dense matrix products. fp32 goes to oneDNN's sgemm (or the built-in one), and where rows must not depend on each
// other to its matmul or the built-in product; bf16 to oneDNN's matmul where the processor multiplies bf16, else
// through fp32 copies: converting is cheap beside the product.
#include "core/device/cpu/gemm.h"

#include <vector>

#if defined(ORTHANT_HAVE_ONEDNN)
#include <oneapi/dnnl/dnnl.h>
#endif

#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/gemm_matmul.h"
#include "core/device/cpu/gemm_plain.h"
#include "core/device/cpu/parallel.h"
#include "core/device/gemm_check.h"

namespace orthant {

void cpu_gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
              const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
#if defined(ORTHANT_HAVE_ONEDNN)
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        c[i * ldc + j] = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
      }
    }
    return;
  }
  if (!ta && tb && beta == 0.0f) {
    if (have_matmul_of_rows()) {
      matmul_gemm(ta, tb, m, n, k, DType::f32, a, lda, b, ldb, beta, c, DType::f32, ldc);
    } else {
      plain::gemm(omp_get_max_threads(), ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
    }
    return;
  }
  const dnnl_status_t status = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
  require(
      status != dnnl_out_of_memory,
      "oneDNN found no memory for a product of [{}, {}] x [{}, {}]: the system gives this process no more (ulimit, a "
      "cgroup's limit, or the machine's memory)",
      m, k, k, n);
  require(status == dnnl_success, "oneDNN's sgemm failed with status {} for [{}, {}] x [{}, {}]",
          static_cast<int>(status), m, k, k, n);
#else
  plain::gemm(omp_get_max_threads(), ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
#endif
}

void prepare_cpu_gemm() {
  constexpr std::int64_t n = 32;  // vectors and single numbers have code of their own
  const std::vector<float> ones(n * n, 1.0f);
  std::vector<float> product(n * n);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      cpu_gemm(ta, tb, n, n, n, ones.data(), n, ones.data(), n, 0, product.data(), n);
    }
  }
}

namespace {

constexpr std::int64_t grain = 1 << 15;

// An fp32 copy of a bf16 tensor in `scratch`, or the tensor itself if it is fp32.
const float* as_float(int threads, const Tensor& t, float* scratch) {
  if (t.dtype() == DType::f32) {
    return t.as<float>();
  }
  const auto* from = t.as<BFloat16>();
  parallel_for(threads, t.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      scratch[i] = to_float(from[i]);
    }
  });
  return scratch;
}

}  // namespace

void CpuStream::gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) {
  const auto [m, n, k] = check_gemm(c, a, b, how);
  if (m == 0 || n == 0) {
    return;
  }
  const ThreadLimit limit(threads_);
  if (a.dtype() == DType::bf16 && k > 0 && have_bf16_matmul(k)) {
    matmul_gemm(how.transpose_a, how.transpose_b, m, n, k, DType::bf16, a.data(), a.dim(1), b.data(), b.dim(1),
                how.beta, c.data(), c.dtype(), n);
    return;
  }
  const auto buffer = [&](int slot, const Tensor& t) {
    return t.dtype() == DType::f32
               ? nullptr
               : static_cast<float*>(scratch(slot, static_cast<std::size_t>(t.elements()) * sizeof(float)));
  };
  const float* af = as_float(threads_, a, buffer(0, a));
  const float* bf = as_float(threads_, b, buffer(1, b));
  if (c.dtype() == DType::f32) {
    cpu_gemm(how.transpose_a, how.transpose_b, m, n, k, af, a.dim(1), bf, b.dim(1), how.beta, c.as<float>(), n);
    return;
  }
  float* cf = buffer(2, c);
  if (how.beta != 0.0f) {
    as_float(threads_, c, cf);
  }
  cpu_gemm(how.transpose_a, how.transpose_b, m, n, k, af, a.dim(1), bf, b.dim(1), how.beta, cf, n);
  auto* to = c.as<BFloat16>();
  parallel_for(threads_, m * n, grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      to[i] = to_bf16(cf[i]);
    }
  });
}

}  // namespace orthant
