// LayerNorm and RMSNorm: forward against the definition, backward against its finite differences.
#include "tests/ops/oracle.h"

namespace orthant::test::norm_test {
namespace {

struct NormCase {
  std::int64_t rows, d;
  NormKind kind;
  bool bias;
  DType dtype;
};

std::vector<NormCase> norm_cases(std::vector<Shape> shapes) {
  std::vector<NormCase> cases;
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      cases.push_back({shape[0], shape[1], NormKind::rmsnorm, false, dtype});
      cases.push_back({shape[0], shape[1], NormKind::layernorm, true, dtype});
    }
    cases.push_back({shape[0], shape[1], NormKind::layernorm, false, DType::f32});
  }
  return cases;
}

std::string name_of(const NormCase& n) {
  return fmt::format("{}x{} kind {} bias {} {}", n.rows, n.d, static_cast<int>(n.kind), n.bias,
                     orthant::name_of(n.dtype));
}

TEST(Norm, Forward) {
  on_every_device([](OpContext& c) {
    for (const NormCase& n : norm_cases({{0, 8}, {1, 1}, {3, 7}, {5, 64}, {33, 130}})) {
      const Input x = c.normal(n.dtype, {n.rows, n.d}, 2, 0.7), w = c.normal(DType::f32, {n.d}, 1);
      const Input b = c.normal(DType::f32, {n.d}, 1);
      const Tensor y = c.poisoned(n.dtype, {n.rows, n.d}), stats = c.poisoned(DType::f32, {n.rows, 2});
      c.stream().norm(y, stats, x.tensor, w.tensor, n.bias ? b.tensor : Tensor(), n.kind, 1e-5f);
      c.expect("y " + name_of(n), y,
               oracle::norm(x.values, w.values, n.bias ? b.values : Values(), n.rows, n.d, n.kind, 1e-5),
               n.dtype == DType::f32 ? 2e-6 : 0.005);
      c.same_bits("stats " + name_of(n), stats);
    }
  });
}

TEST(Norm, Backward) {
  on_every_device([](OpContext& c) {
    for (const NormCase& n : norm_cases({{0, 3}, {1, 2}, {3, 7}, {70, 5}, {4, 33}})) {
      const Input x = c.normal(n.dtype, {n.rows, n.d}, 2, 0.7), w = c.normal(DType::f32, {n.d}, 1);
      const Input dy = c.normal(n.dtype, {n.rows, n.d}, 1);
      const Input dx = c.normal(n.dtype, {n.rows, n.d}, 1), dw = c.normal(DType::f32, {n.d}, 1);
      const Input db = c.normal(DType::f32, {n.d}, 1);
      const Tensor y = c.poisoned(n.dtype, {n.rows, n.d}), stats = c.poisoned(DType::f32, {n.rows, 2});
      c.stream().norm(y, stats, x.tensor, w.tensor, {}, n.kind, 1e-3f);
      c.stream().norm_backward(dx.tensor, dw.tensor, n.bias ? db.tensor : Tensor(), dy.tensor, x.tensor, stats,
                               w.tensor, n.kind);
      const auto loss = [&](const Values& xs, const Values& ws, const Values& bs) {
        return inner(dy.values, oracle::norm(xs, ws, bs, n.rows, n.d, n.kind, 1e-3));
      };
      const auto plus = [](Values a, const Values& b) {
        for (std::size_t i = 0; i < a.size(); ++i) {
          a[i] += b[i];
        }
        return a;
      };
      const Values zero(static_cast<std::size_t>(n.d), 0.0);
      const double tolerance = n.dtype == DType::f32 ? 1e-5 : 0.01;
      c.expect("dx " + name_of(n), dx.tensor,
               plus(dx.values, numeric_gradient([&](const Values& v) { return loss(v, w.values, zero); }, x.values)),
               tolerance);
      c.expect("dw " + name_of(n), dw.tensor,
               plus(dw.values, numeric_gradient([&](const Values& v) { return loss(x.values, v, zero); }, w.values)),
               1e-5);
      if (n.bias) {
        c.expect("db " + name_of(n), db.tensor,
                 plus(db.values, numeric_gradient([&](const Values& v) { return loss(x.values, w.values, v); }, zero)),
                 1e-5);
      }
    }
  });
}

// Rows of every length that a device treats in another way. The gradient by its closed form, in fp64: finite
// differences of so many columns take long, and have shown the form right on the short ones.
TEST(Norm, LongRows) {
  on_every_device([](OpContext& c) {
    std::vector<NormCase> cases;
    for (const std::int64_t d : {600, 2051, 6000, 17000}) {
      cases.push_back({2, d, NormKind::rmsnorm, false, DType::bf16});
      cases.push_back({2, d, NormKind::layernorm, true, DType::f32});
    }
    for (const NormCase& n : cases) {
      const Input x = c.normal(n.dtype, {n.rows, n.d}, 2, 0.7), w = c.normal(DType::f32, {n.d}, 1);
      const Input b = c.normal(DType::f32, {n.d}, 1), dy = c.normal(n.dtype, {n.rows, n.d}, 1);
      const Input dx = c.normal(n.dtype, {n.rows, n.d}, 1), dw = c.normal(DType::f32, {n.d}, 1);
      const Tensor y = c.poisoned(n.dtype, {n.rows, n.d}), stats = c.poisoned(DType::f32, {n.rows, 2});
      c.stream().norm(y, stats, x.tensor, w.tensor, n.bias ? b.tensor : Tensor(), n.kind, 1e-5f);
      c.expect("y " + name_of(n), y,
               oracle::norm(x.values, w.values, n.bias ? b.values : Values(), n.rows, n.d, n.kind, 1e-5),
               n.dtype == DType::f32 ? 5e-6 : 0.005);
      c.stream().norm_backward(dx.tensor, dw.tensor, n.bias ? b.tensor : Tensor(), dy.tensor, x.tensor, stats, w.tensor,
                               n.kind);
      const Values xhat = oracle::norm(x.values, Values(w.values.size(), 1.0), {}, n.rows, n.d, n.kind, 1e-5);
      const Values read = c.values_of(stats);
      Values want_dx = dx.values, want_dw = dw.values, want_db = b.values;
      for (std::int64_t t = 0; t < n.rows; ++t) {
        double shift = 0, slope = 0;
        for (std::int64_t j = 0; j < n.d; ++j) {
          const double g = oracle::at(dy.values, t * n.d + j) * oracle::at(w.values, j) / static_cast<double>(n.d);
          shift += n.kind == NormKind::layernorm ? g : 0;
          slope += g * oracle::at(xhat, t * n.d + j);
        }
        for (std::int64_t j = 0; j < n.d; ++j) {
          const double out = oracle::at(dy.values, t * n.d + j), h = oracle::at(xhat, t * n.d + j);
          oracle::at(want_dx, t * n.d + j) +=
              oracle::at(read, t * 2 + 1) * (out * oracle::at(w.values, j) - shift - h * slope);
          oracle::at(want_dw, j) += out * h;
          oracle::at(want_db, j) += out;
        }
      }
      c.expect("dx " + name_of(n), dx.tensor, want_dx, n.dtype == DType::f32 ? 1e-5 : 0.01);
      c.expect("dw " + name_of(n), dw.tensor, want_dw, 1e-5);
      if (n.bias) {
        c.expect("db " + name_of(n), b.tensor, want_db, 1e-5);
      }
    }
  });
}

TEST(Norm, ManyRowsHaveTheSameBitsForAnyThreadCount) {
  on_every_device([](OpContext& c) {
    const Input x = c.normal(DType::f32, {3001, 65}, 1), w = c.normal(DType::f32, {65}, 1);
    const Input dx = c.constant(DType::f32, {3001, 65}, 0), dw = c.constant(DType::f32, {65}, 0);
    const Tensor y = c.poisoned(DType::f32, {3001, 65}), stats = c.poisoned(DType::f32, {3001, 2});
    c.stream().norm(y, stats, x.tensor, w.tensor, {}, NormKind::rmsnorm, 1e-5f);
    c.stream().norm_backward(dx.tensor, dw.tensor, {}, y, x.tensor, stats, w.tensor, NormKind::rmsnorm);
    c.same_bits("y", y);
    c.same_bits("dx", dx.tensor);
    c.same_bits("dw", dw.tensor);
  });
}

}  // namespace
}  // namespace orthant::test::norm_test
