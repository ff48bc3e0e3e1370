#include "core/device/cpu/gemm_matmul.h"

#if defined(ORTHANT_HAVE_ONEDNN)
#include <oneapi/dnnl/dnnl.hpp>

#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "core/device/cpu/parallel.h"
#endif

namespace orthant {

#if defined(ORTHANT_HAVE_ONEDNN)

namespace {

// batch: as a batch of one matrix.
dnnl::memory::desc matrix(dnnl::memory::data_type type, std::int64_t rows, std::int64_t columns, bool transposed,
                          std::int64_t ld, bool batch) {
  dnnl::memory::dims sizes = {rows, columns},
                     strides = transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1};
  if (batch) {
    sizes.insert(sizes.begin(), 1);
    strides.insert(strides.begin(), (transposed ? columns : rows) * ld);
  }
  return {sizes, type, strides};
}

// oneDNN 3 takes what oneDNN 2 puts into a descriptor of its own.
dnnl::matmul::primitive_desc product_of(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                        const dnnl::memory::desc& b, const dnnl::memory::desc& c,
                                        const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c, attributes};
#else
  return {{a, b, c}, attributes, engine};
#endif
}

// Whether the processor, as oneDNN sees it, has all of `isa`: its values are sets of bits, newer processors' supersets.
// On other processors than x86 the same bits mean other instructions: aarch64's 0x27 would read as AVX-512.
bool has([[maybe_unused]] dnnl::cpu_isa isa) {
#if !defined(__x86_64__)
  return false;
#else
  const auto wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
#endif
}

// oneDNN 2.6 crashes where it finds no memory for the code that it makes for a new shape. So there must be some, of
// pages as it asks for them, before the first product of a shape on a thread.
constexpr std::size_t memory_of_code = std::size_t{8} << 20;

class ShapesWithCode {
 public:
  // Errors: bad_alloc.
  void require(std::uint64_t shape) {
    std::uint64_t& known = known_[shape % known_.size()];
    if (known == shape) {
      return;
    }
    void* const room = mmap(nullptr, memory_of_code, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
      throw std::bad_alloc();
    }
    munmap(room, memory_of_code);
    known = shape;
  }

 private:
  std::array<std::uint64_t, 256> known_{};  // one that is forgotten is asked for again
};

// With more threads the kernels for AMX divide the sum over k among some of them, where rows are few.
constexpr int most_threads_of_amx = 15;

// With AMX oneDNN 2.6 gives a small product to the instructions of before, which add in another order: one of at most
// 32 rows and 256 sums, and one row of 256 steps. It does not do so with batches of products.
constexpr std::int64_t most_rows_of_small_products = 32;

// oneDNN 3 sums one row alone in another order than one among others, where k is 2048 or more.
constexpr bool one_row_differs = DNNL_VERSION_MAJOR >= 3;

// a [1, k] of stride `step` and c [1, n] as two equal rows.
class TwoRows {
 public:
  TwoRows(const void* a, std::int64_t step, std::int64_t k, std::size_t a_bytes, void* c, std::int64_t n,
          std::size_t c_bytes)
      : a_(2 * static_cast<std::size_t>(k) * a_bytes), c_(2 * static_cast<std::size_t>(n) * c_bytes), to_(c) {
    const auto* const from = static_cast<const std::byte*>(a);
    const std::size_t row = a_.size() / 2;
    for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
      std::memcpy(a_.data() + i * a_bytes, from + i * static_cast<std::size_t>(step) * a_bytes, a_bytes);
    }
    std::memcpy(a_.data() + row, a_.data(), row);
    std::memcpy(c_.data(), c, c_.size() / 2);
    std::memcpy(c_.data() + c_.size() / 2, c, c_.size() / 2);
  }
  const void* a() const { return a_.data(); }
  void* c() { return c_.data(); }
  void give_back() const { std::memcpy(to_, c_.data(), c_.size() / 2); }

 private:
  std::vector<std::byte> a_, c_;
  void* to_;
};

}  // namespace

bool have_matmul_of_rows() {
  return has(dnnl::cpu_isa::avx512_core);
}

// With AVX-512 but no bf16 instructions oneDNN emulates them: fp32 copies are faster. With AMX the order of long sums
// that do not end with a whole tile depends on the rows (seen for k = 4001), and so does that of sums shorter than a
// tile (k = 4, 8, 12, 16).
bool have_bf16_matmul(std::int64_t k) {
  constexpr std::int64_t steps_of_a_tile = 32, long_sum = 1024;
  const bool whole = k % steps_of_a_tile == 0 || (k > steps_of_a_tile && k <= long_sum);
  return has(dnnl::cpu_isa::avx512_core_bf16) && (whole || !has(dnnl::cpu_isa::avx512_core_amx));
}

void matmul_gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, const void* a,
                 std::int64_t lda, const void* b, std::int64_t ldb, float beta, void* c, DType c_dtype,
                 std::int64_t ldc) {
  if (one_row_differs && m == 1) {
    TwoRows two(a, ta ? lda : 1, k, size_of(dtype), c, n, size_of(c_dtype));
    matmul_gemm(false, tb, 2, n, k, dtype, two.a(), k, b, ldb, beta, two.c(), c_dtype, n);
    two.give_back();
    return;
  }
  using type = dnnl::memory::data_type;
  const int threads = omp_get_max_threads();
  thread_local ShapesWithCode shapes;  // as oneDNN's own cache, it changes no result
  const std::array<std::int64_t, 10> shape = {
      ta + 2 * tb, m, n, k, lda, ldb, ldc, (dtype == DType::f32) + 2 * (c_dtype == DType::f32), beta != 0, threads};
  shapes.require(XXH3_64bits(shape.data(), sizeof shape));
  const ThreadLimit limit(has(dnnl::cpu_isa::avx512_core_amx) ? std::min(threads, most_threads_of_amx) : threads);
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto of = [](DType t) { return t == DType::f32 ? type::f32 : type::bf16; };
    const bool batch = dtype == DType::bf16 && m <= most_rows_of_small_products && has(dnnl::cpu_isa::avx512_core_amx);
    const auto a_desc = matrix(of(dtype), m, k, ta, lda, batch), b_desc = matrix(of(dtype), k, n, tb, ldb, batch);
    const auto c_desc = matrix(of(c_dtype), m, n, false, ldc, batch);
    dnnl::primitive_attr attributes;
    if (beta != 0.0f) {
      dnnl::post_ops post;
      post.append_sum(beta);
      attributes.set_post_ops(post);
    }
    // Creating the primitive again is a lookup: oneDNN caches them by shape.
    const dnnl::matmul product(product_of(engine, a_desc, b_desc, c_desc, attributes));
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

bool have_bf16_matmul(std::int64_t) {
  return false;
}

void matmul_gemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, DType, const void*, std::int64_t, const void*,
                 std::int64_t, float, void*, DType, std::int64_t) {
  fail("matmul_gemm: this build has no oneDNN");
}

#endif

}  // namespace orthant
