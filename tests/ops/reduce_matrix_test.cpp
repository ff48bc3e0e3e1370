// Sums, and the largest, of rows, of columns and of all of a matrix: against plain loops in fp64.
#include <orthant/group.h>

#include "tests/ops/oracle.h"

namespace orthant::test::reduce_matrix_test {
namespace {

struct Expected {
  Values rows, columns, all;
};

Expected reduced(const Values& x, std::int64_t rows, std::int64_t columns, double first, ReduceOp how) {
  Expected e{Values(static_cast<std::size_t>(rows), first), Values(static_cast<std::size_t>(columns), first), {first}};
  const auto join = [&](double& to, double v) { to = how == ReduceOp::sum ? to + v : v > to || v != v ? v : to; };
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const double v = oracle::at(x, i * columns + j);
      join(oracle::at(e.rows, i), v);
      join(oracle::at(e.columns, j), v);
      join(e.all[0], v);
    }
  }
  return e;
}

TEST(ReduceMatrix, RowsColumnsAndAll) {
  const std::int64_t shapes[][2] = {{1, 1}, {3, 70}, {70, 3}, {129, 257}, {4100, 3}, {2, 3000}, {0, 5}, {5, 0}};
  on_every_device([&](OpContext& c) {
    for (const auto& [rows, columns] : shapes) {
      for (const ReduceOp how : {ReduceOp::sum, ReduceOp::max}) {
        if (rows > 4096 && how == ReduceOp::max) {
          continue;  // one of more rows than CUDA's kernel has blocks is enough
        }
        const std::string name = fmt::format("{} x {} {}", rows, columns, how == ReduceOp::sum ? "sum" : "max");
        const Input x = c.normal(DType::f32, {rows, columns}, 1, 0.5);
        const double first = -0.25;
        const Expected expected = reduced(x.values, rows, columns, first, how);
        const Input r = c.constant(DType::f64, {rows}, first), k = c.constant(DType::f64, {columns}, first),
                    all = c.constant(DType::f64, {1}, first);
        c.stream().reduce_matrix(r.tensor, k.tensor, all.tensor, x.tensor, how);
        c.expect("rows of " + name, r.tensor, expected.rows, 1e-12);
        c.expect("columns of " + name, k.tensor, expected.columns, 1e-12);
        c.expect("all of " + name, all.tensor, expected.all, 1e-12);
        // Each by itself.
        const Input only = c.constant(DType::f64, {columns}, first), alone = c.constant(DType::f64, {1}, first);
        c.stream().reduce_matrix({}, only.tensor, {}, x.tensor, how);
        c.stream().reduce_matrix({}, {}, alone.tensor, x.tensor, how);
        c.expect("columns alone of " + name, only.tensor, expected.columns, 1e-12);
        c.expect("all alone of " + name, alone.tensor, expected.all, 1e-12);
      }
    }
  });
}

TEST(ReduceMatrix, WhatIsNotANumberStays) {
  on_every_device([](OpContext& c) {
    const double nan = std::nan("");
    const Input x = c.input(DType::f32, {3, 2}, {1, 2, nan, 4, 5, 6});
    for (const ReduceOp how : {ReduceOp::sum, ReduceOp::max}) {
      const Input r = c.constant(DType::f64, {3}, 0), k = c.constant(DType::f64, {2}, 0),
                  all = c.constant(DType::f64, {1}, 0);
      c.stream().reduce_matrix(r.tensor, k.tensor, all.tensor, x.tensor, how);
      const bool sum = how == ReduceOp::sum;
      c.expect("rows", r.tensor, {sum ? 3.0 : 2.0, nan, sum ? 11.0 : 6.0}, 1e-12);
      c.expect("columns", k.tensor, {nan, sum ? 12.0 : 6.0}, 1e-12);
      c.expect("all", all.tensor, {nan}, 0);
    }
  });
}

TEST(ReduceMatrix, WrongShapesAreRefused) {
  on_every_device([](OpContext& c) {
    const Input x = c.normal(DType::f32, {3, 2}, 1), two = c.constant(DType::f64, {2}, 0);
    EXPECT_THROW(c.stream().reduce_matrix(two.tensor, {}, {}, x.tensor, ReduceOp::sum), Error);
    EXPECT_THROW(c.stream().reduce_matrix({}, two.tensor, {}, x.tensor, ReduceOp::min), Error);
    EXPECT_THROW(c.stream().reduce_matrix({}, two.tensor, {}, two.tensor, ReduceOp::sum), Error);
  });
}

}  // namespace
}  // namespace orthant::test::reduce_matrix_test
