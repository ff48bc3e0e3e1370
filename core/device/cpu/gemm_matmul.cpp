#include "core/device/cpu/gemm_matmul.h"

#if defined(ORTHANT_HAVE_ONEDNN)
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace orthant {

#if defined(ORTHANT_HAVE_ONEDNN)

namespace {

dnnl::memory::desc matrix(dnnl::memory::data_type type, std::int64_t rows, std::int64_t columns, bool transposed,
                          std::int64_t ld) {
  const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1};
  return {{rows, columns}, type, strides};
}

}  // namespace

bool have_matmul_of_rows() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni:
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx: return true;
    default: return false;
  }
}

bool have_bf16_matmul() {
  // With AVX-512 but no bf16 instructions oneDNN emulates them: fp32 copies are faster.
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx: return true;
    default: return false;
  }
}

void matmul_gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, const void* a,
                 std::int64_t lda, const void* b, std::int64_t ldb, float beta, void* c, DType c_dtype,
                 std::int64_t ldc) {
  using type = dnnl::memory::data_type;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto of = [](DType t) { return t == DType::f32 ? type::f32 : type::bf16; };
    const auto a_desc = matrix(of(dtype), m, k, ta, lda), b_desc = matrix(of(dtype), k, n, tb, ldb);
    const auto c_desc = matrix(of(c_dtype), m, n, false, ldc);
    dnnl::primitive_attr attributes;
    if (beta != 0.0f) {
      dnnl::post_ops post;
      post.append_sum(beta);
      attributes.set_post_ops(post);
    }
    // Creating the primitive again is a lookup: oneDNN caches them by shape.
    const dnnl::matmul product(dnnl::matmul::primitive_desc({a_desc, b_desc, c_desc}, attributes, engine));
    product.execute(stream, {{DNNL_ARG_SRC, dnnl::memory(a_desc, engine, const_cast<void*>(a))},
                             {DNNL_ARG_WEIGHTS, dnnl::memory(b_desc, engine, const_cast<void*>(b))},
                             {DNNL_ARG_DST, dnnl::memory(c_desc, engine, c)}});
    stream.wait();
  } catch (const dnnl::error& error) {
    fail("oneDNN's matmul failed for [{}, {}] x [{}, {}]: {}", m, k, k, n, error.what());
  }
}

#else

bool have_matmul_of_rows() {
  return false;
}

bool have_bf16_matmul() {
  return false;
}

void matmul_gemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, DType, const void*, std::int64_t, const void*,
                 std::int64_t, float, void*, DType, std::int64_t) {
  fail("matmul_gemm: this build has no oneDNN");
}

#endif

}  // namespace orthant
