// Matrix products against the triple loop in fp64.
#include "core/device/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "core/device/cpu/gemm_plain.h"
#include "core/modules/make_device.h"
#include "tests/support/op_harness.h"

namespace orthant::test::gemm_test {
namespace {

// op(A) op(B) + beta * C, row-major.
Values product(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const Values& a, const Values& b,
               double beta, const Values& c) {
  Values out(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        sum += a[ta ? p * m + i : i * k + p] * b[tb ? j * k + p : p * n + j];
      }
      const auto at = static_cast<std::size_t>(i * n + j);
      out[at] = sum + (beta == 0 ? 0 : beta * c[at]);
    }
  }
  return out;
}

struct Sizes {
  std::int64_t m, n, k;
};
// The last ones are empty in one way each.
const Sizes all_sizes[] = {{1, 1, 1},     {3, 5, 7}, {17, 33, 9}, {64, 48, 100},
                           {70, 50, 130}, {0, 4, 3}, {4, 0, 3},   {5, 6, 0}};

// tolerance_of_sums: where the product is added to what C has.
void check_gemm(OpContext& c, DType in, DType out, double tolerance, double tolerance_of_sums) {
  for (const Sizes s : all_sizes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const float beta : {0.0f, 1.0f}) {
          const Input a = c.normal(in, ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1);
          const Input b = c.normal(in, tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, 1);
          const Input before = c.normal(out, {s.m, s.n}, 1);
          const Tensor y = beta == 0 ? c.poisoned(out, {s.m, s.n}) : before.tensor;
          c.stream().gemm(y, a.tensor, b.tensor, {ta, tb, beta});
          c.expect(fmt::format("c {}x{}x{} {}{} beta {}", s.m, s.n, s.k, ta, tb, beta), y,
                   product(ta, tb, s.m, s.n, s.k, a.values, b.values, static_cast<double>(beta), before.values),
                   beta == 0 ? tolerance : tolerance_of_sums);
        }
      }
    }
  }
}

TEST(Gemm, Fp32) {
  on_every_device([](OpContext& c) { check_gemm(c, DType::f32, DType::f32, 1e-5, 1e-5); }, SameBits::per_thread_count);
}
TEST(Gemm, Bf16ToFp32) {
  on_every_device([](OpContext& c) { check_gemm(c, DType::bf16, DType::f32, 1e-5, 1e-5); }, SameBits::per_thread_count);
}
// cuBLAS has kernels that round the product to bf16 before they add it (seen on an H200): 2^-8 twice.
TEST(Gemm, Bf16) {
  on_every_device([](OpContext& c) { check_gemm(c, DType::bf16, DType::bf16, 0.005, 0.008); },
                  SameBits::per_thread_count);
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  on_every_device([](OpContext& c) {
    const Tensor a = c.poisoned(DType::f32, {2, 3}), b = c.poisoned(DType::f32, {4, 5});
    const Tensor y = c.poisoned(DType::f32, {2, 5});
    try {
      c.stream().gemm(y, a, b, {});
      c.stream().synchronize();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("gemm"), std::string::npos) << text;
      EXPECT_NE(text.find("[2, 3]"), std::string::npos) << text;
      EXPECT_NE(text.find("[4, 5]"), std::string::npos) << text;
    }
    EXPECT_THROW(c.stream().gemm(y, a, c.poisoned(DType::bf16, {3, 5}), {}), Error);
    EXPECT_THROW(c.stream().gemm(y, a, Tensor(), {}), Error);
  });
}

// Both fp32 products on parts of larger matrices: leading dimensions, and nothing written beside C.
template <class Product>
void check_leading_dimensions(Product&& multiply) {
  for (const Sizes s : {Sizes{1, 1, 1}, Sizes{7, 35, 12}, Sizes{97, 65, 257}, Sizes{200, 1030, 260}, Sizes{3, 2, 0}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const float beta : {0.0f, 1.0f}) {
          SCOPED_TRACE(fmt::format("{}x{}x{} {}{} beta {}", s.m, s.n, s.k, ta, tb, beta));
          const std::int64_t lda = (ta ? s.m : s.k) + 3, ldb = (tb ? s.k : s.n) + 2, ldc = s.n + 5;
          std::vector<float> a(static_cast<std::size_t>((ta ? s.k : s.m) * lda)),
              b(static_cast<std::size_t>((tb ? s.n : s.k) * ldb)), y(static_cast<std::size_t>(s.m * ldc), 2.0f);
          for (std::size_t i = 0; i < a.size(); ++i) {
            a[i] = uniform({1}, i) - 0.5f;
          }
          for (std::size_t i = 0; i < b.size(); ++i) {
            b[i] = uniform({2}, i) - 0.5f;
          }
          if (beta == 0) {
            for (std::int64_t i = 0; i < s.m; ++i) {
              std::fill_n(y.begin() + i * ldc, s.n, std::nanf(""));
            }
          }
          multiply(ta, tb, s.m, s.n, s.k, a.data(), lda, b.data(), ldb, beta, y.data(), ldc);
          for (std::int64_t i = 0; i < s.m; ++i) {
            for (std::int64_t j = 0; j < ldc; ++j) {
              double expected = beta == 0 && j < s.n ? 0 : 2;
              for (std::int64_t p = 0; p < s.k && j < s.n; ++p) {
                expected += static_cast<double>(a[ta ? p * lda + i : i * lda + p]) *
                            static_cast<double>(b[tb ? j * ldb + p : p * ldb + j]);
              }
              ASSERT_NEAR(static_cast<double>(y[i * ldc + j]), expected, 1e-4) << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, RawPointers) {
  check_leading_dimensions(cpu_gemm);
}

// A row of x W^T has the same bits alone, among others, and for any number of threads: generation computes a token
// as training does.
TEST(Gemm, RowsDoNotDependOnEachOther) {
  constexpr std::int64_t all = 700;
  struct Case {
    DType in, out;
  };
  for (const Case& dtype :
       {Case{DType::f32, DType::f32}, Case{DType::bf16, DType::f32}, Case{DType::bf16, DType::bf16}}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{12, 8},
                               {24, 16},
                               {24, 17},
                               {7, 64},
                               {24, 256},
                               {100, 333},
                               {512, 1024},
                               {2000, 64},
                               {33, 4001}}) {
      std::vector<std::byte> whole;
      for (const int threads : {1, 2}) {
        const std::unique_ptr<Device> device = make_device("cpu", threads);
        const std::unique_ptr<Stream> s = device->make_main_stream();
        const auto random = [&](Shape shape, std::uint64_t key) {
          std::vector<float> values(static_cast<std::size_t>(shape.elements()));
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = uniform({key}, i) - 0.5f;
          }
          const Tensor wide = device->empty(DType::f32, shape), t = device->empty(dtype.in, shape);
          s->upload(wide, values.data());
          s->cast(t, wide);
          return t;
        };
        const Tensor x = random({all, k}, 1), w = random({n, k}, 2);
        for (const std::int64_t m : {all, std::int64_t{1}, std::int64_t{2}, std::int64_t{5}, std::int64_t{16},
                                     std::int64_t{17}, std::int64_t{64}, std::int64_t{129}}) {
          const std::int64_t at = std::min<std::int64_t>(77, all - m);
          const Tensor y = device->empty(dtype.out, {m, n});
          s->gemm(y, x.rows(at, m), w, {.transpose_b = true});
          const auto bytes = std::as_bytes(std::span(static_cast<const std::byte*>(y.data()), y.bytes()));
          if (whole.empty()) {
            whole.assign(bytes.begin(), bytes.end());
          }
          const std::size_t row = y.bytes() / static_cast<std::size_t>(m);
          EXPECT_EQ(std::memcmp(bytes.data(), whole.data() + static_cast<std::size_t>(at) * row, bytes.size()), 0)
              << m << " rows of [" << n << ", " << k << "], " << name_of(dtype.in) << " to " << name_of(dtype.out)
              << ", " << threads << " threads";
        }
      }
    }
  }
}

TEST(Gemm, BuiltIn) {
  for (const int threads : {1, 2}) {
    check_leading_dimensions([=](auto... arguments) { plain::gemm(threads, arguments...); });
  }
}

}  // namespace
}  // namespace orthant::test::gemm_test
