// Attention: forward against whole rows of scores in fp64, backward against finite differences of that.
#include "tests/ops/oracle.h"

namespace orthant::test::attention_test {
namespace {

struct AttentionCase {
  AttentionShape shape;
  bool packed;  // documents of 5 positions
  DType dtype;
  bool both = false;  // a token sees what comes after it too, of its document or sequence
};

std::string name_of(const AttentionCase& a) {
  return fmt::format("{}x{} heads {}/{} c {} packed {} both {} {}", a.shape.batch, a.shape.positions, a.shape.heads,
                     a.shape.kv_heads, a.shape.head_dim, a.packed, a.both, orthant::name_of(a.dtype));
}

struct Inputs {
  Input q, k, v, first;
  Tensor o, lse;
  Values first_values;  // empty: none
};

Inputs make_inputs(OpContext& c, const AttentionCase& a) {
  const AttentionShape& s = a.shape;
  const std::int64_t rows = s.batch * s.positions;
  Inputs in;
  in.q = c.normal(a.dtype, {rows, s.heads * s.head_dim}, 1.5);
  in.k = c.normal(a.dtype, {rows, s.kv_heads * s.head_dim}, 1.5);
  in.v = c.normal(a.dtype, {rows, s.kv_heads * s.head_dim}, 1);
  in.o = c.poisoned(a.dtype, {rows, s.heads * s.head_dim});
  in.lse = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
  for (std::int64_t t = 0; t < rows && (a.packed || a.both); ++t) {
    in.first_values.push_back(static_cast<double>(a.packed ? t % s.positions / 5 * 5 : 0));
  }
  for (std::int64_t t = 0; t < rows && a.both; ++t) {
    const std::int64_t end = a.packed ? t % s.positions / 5 * 5 + 5 : s.positions;
    in.first_values.push_back(static_cast<double>(std::min(end, s.positions) - 1));
  }
  if (a.both) {
    in.first = c.input(DType::i32, {2, rows}, in.first_values);
  } else if (a.packed) {
    in.first = c.input(DType::i32, {rows}, in.first_values);
  }
  return in;
}

TEST(Attention, Forward) {
  on_every_device([](OpContext& c) {
    for (const AttentionCase& a :
         {AttentionCase{{0, 4, 2, 2, 8}, false, DType::f32}, AttentionCase{{2, 0, 2, 2, 8}, false, DType::f32},
          AttentionCase{{1, 1, 1, 1, 1}, false, DType::f32}, AttentionCase{{2, 7, 4, 2, 8}, false, DType::f32},
          AttentionCase{{1, 64, 2, 1, 32}, false, DType::f32}, AttentionCase{{2, 65, 2, 2, 13}, false, DType::f32},
          AttentionCase{{1, 150, 6, 2, 64}, false, DType::bf16}, AttentionCase{{2, 131, 2, 1, 20}, true, DType::f32},
          AttentionCase{{1, 200, 1, 1, 128}, false, DType::f32}, AttentionCase{{1, 63, 2, 2, 40}, false, DType::bf16},
          AttentionCase{{1, 129, 3, 1, 80}, false, DType::bf16}, AttentionCase{{1, 66, 1, 1, 136}, true, DType::f32},
          AttentionCase{{1, 65, 1, 1, 256}, false, DType::bf16},
          AttentionCase{{2, 7, 2, 1, 8}, false, DType::f32, true},
          AttentionCase{{2, 131, 2, 1, 20}, true, DType::f32, true},
          AttentionCase{{1, 150, 6, 2, 64}, false, DType::bf16, true}}) {
      const Inputs in = make_inputs(c, a);
      c.stream().attention(in.o, in.lse, in.q.tensor, in.k.tensor, in.v.tensor, in.first.tensor, a.shape);
      Values lse;
      const Values o = oracle::attention(in.q.values, in.k.values, in.v.values, in.first_values, a.shape, &lse);
      c.expect("o " + name_of(a), in.o, o, a.dtype == DType::f32 ? 1e-5 : 0.01);  // bf16: of weights and of o
      c.expect("lse " + name_of(a), in.lse, lse, 2e-6);
    }
  });
}

TEST(Attention, Backward) {
  on_every_device([](OpContext& c) {
    for (const AttentionCase& a :
         {AttentionCase{{0, 4, 2, 2, 8}, false, DType::f32}, AttentionCase{{1, 1, 1, 1, 1}, false, DType::f32},
          AttentionCase{{2, 7, 4, 2, 8}, false, DType::f32}, AttentionCase{{2, 7, 4, 2, 8}, false, DType::bf16},
          AttentionCase{{1, 13, 2, 2, 17}, true, DType::f32}, AttentionCase{{1, 67, 2, 1, 3}, true, DType::f32},
          AttentionCase{{2, 7, 4, 2, 8}, false, DType::f32, true},
          AttentionCase{{1, 67, 2, 1, 3}, true, DType::f32, true},
          AttentionCase{{2, 7, 4, 2, 8}, true, DType::bf16, true}}) {
      const AttentionShape& s = a.shape;
      const std::int64_t rows = s.batch * s.positions;
      const Inputs in = make_inputs(c, a);
      const Input d_o = c.normal(a.dtype, {rows, s.heads * s.head_dim}, 1);
      const Tensor dq = c.poisoned(a.dtype, {rows, s.heads * s.head_dim});
      const Tensor dk = c.poisoned(a.dtype, {rows, s.kv_heads * s.head_dim});
      const Tensor dv = c.poisoned(a.dtype, {rows, s.kv_heads * s.head_dim});
      c.stream().attention(in.o, in.lse, in.q.tensor, in.k.tensor, in.v.tensor, in.first.tensor, s);
      c.stream().attention_backward(dq, dk, dv, d_o.tensor, in.q.tensor, in.k.tensor, in.v.tensor, in.o, in.lse,
                                    in.first.tensor, s);
      const auto loss = [&](const Values& q, const Values& k, const Values& v) {
        return inner(d_o.values, oracle::attention(q, k, v, in.first_values, s, nullptr));
      };
      // bf16: o is rounded before it is used, which shows the more the fewer of a row's weights are small.
      const double tolerance = a.dtype == DType::f32 ? 1e-5 : a.both ? 0.04 : 0.02;
      c.expect("dq " + name_of(a), dq,
               numeric_gradient([&](const Values& x) { return loss(x, in.k.values, in.v.values); }, in.q.values),
               tolerance);
      c.expect("dk " + name_of(a), dk,
               numeric_gradient([&](const Values& x) { return loss(in.q.values, x, in.v.values); }, in.k.values),
               tolerance);
      c.expect("dv " + name_of(a), dv,
               numeric_gradient([&](const Values& x) { return loss(in.q.values, in.k.values, x); }, in.v.values),
               tolerance);
    }
  });
}

// Devices that do not cut scores off refuse such a shape.
TEST(Attention, CutsScoresOff) {
  for (const int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    OpContext c(*device);
    for (AttentionCase a :
         {AttentionCase{{2, 7, 4, 2, 8}, false, DType::f32}, AttentionCase{{2, 7, 4, 2, 8}, false, DType::bf16},
          AttentionCase{{1, 67, 2, 1, 3}, true, DType::f32}}) {
      a.shape.softcap = 1.25f;
      const AttentionShape& s = a.shape;
      const Shape wide{s.batch * s.positions, s.heads * s.head_dim}, narrow{wide[0], s.kv_heads * s.head_dim};
      const Inputs in = make_inputs(c, a);
      const Input d_o = c.normal(a.dtype, wide, 1);
      const Tensor dq = c.poisoned(a.dtype, wide), dk = c.poisoned(a.dtype, narrow), dv = c.poisoned(a.dtype, narrow);
      c.stream().attention(in.o, in.lse, in.q.tensor, in.k.tensor, in.v.tensor, in.first.tensor, s);
      c.stream().attention_backward(dq, dk, dv, d_o.tensor, in.q.tensor, in.k.tensor, in.v.tensor, in.o, in.lse,
                                    in.first.tensor, s);
      Values lse;
      const Values o = oracle::attention(in.q.values, in.k.values, in.v.values, in.first_values, s, &lse);
      const bool wide_type = a.dtype == DType::f32;
      c.expect("o " + name_of(a), in.o, o, wide_type ? 1e-5 : 0.01);
      c.expect("lse " + name_of(a), in.lse, lse, 2e-6);
      const auto loss = [&](const Values& q, const Values& k) {
        return inner(d_o.values, oracle::attention(q, k, in.v.values, in.first_values, s, nullptr));
      };
      c.expect("dq " + name_of(a), dq,
               numeric_gradient([&](const Values& x) { return loss(x, in.k.values); }, in.q.values),
               wide_type ? 1e-5 : 0.02);
      c.expect("dk " + name_of(a), dk,
               numeric_gradient([&](const Values& x) { return loss(in.q.values, x); }, in.k.values),
               wide_type ? 1e-5 : 0.02);
    }
  }
}

// Several tiles and wide heads: the gradient along random directions.
TEST(Attention, BackwardOfLongSequences) {
  on_every_device([](OpContext& c) {
    for (const AttentionCase& a :
         {AttentionCase{{2, 150, 4, 2, 48}, false, DType::f32}, AttentionCase{{1, 200, 2, 2, 64}, true, DType::f32},
          AttentionCase{{1, 129, 2, 1, 80}, true, DType::f32}, AttentionCase{{1, 65, 1, 1, 200}, false, DType::f32},
          AttentionCase{{1, 66, 2, 1, 128}, false, DType::bf16}}) {
      const AttentionShape& s = a.shape;
      const std::int64_t rows = s.batch * s.positions;
      const Inputs in = make_inputs(c, a);
      const Shape wide{rows, s.heads * s.head_dim}, narrow{rows, s.kv_heads * s.head_dim};
      const Input d_o = c.normal(a.dtype, wide, 1);
      const Tensor dq = c.poisoned(a.dtype, wide), dk = c.poisoned(a.dtype, narrow), dv = c.poisoned(a.dtype, narrow);
      c.stream().attention(in.o, in.lse, in.q.tensor, in.k.tensor, in.v.tensor, in.first.tensor, s);
      c.stream().attention_backward(dq, dk, dv, d_o.tensor, in.q.tensor, in.k.tensor, in.v.tensor, in.o, in.lse,
                                    in.first.tensor, s);
      const Values uq = c.normal(DType::f64, wide, 1).values, uk = c.normal(DType::f64, narrow, 1).values;
      const Values uv = c.normal(DType::f64, narrow, 1).values;
      const auto along = [&](double wq, double wk, double wv) {
        return numeric_gradient(
            [&](const Values& h) {
              const auto moved = [&](Values x, const Values& u, double w) {
                for (std::size_t i = 0; i < x.size(); ++i) {
                  x[i] += w * h[0] * u[i];
                }
                return x;
              };
              return inner(d_o.values, oracle::attention(moved(in.q.values, uq, wq), moved(in.k.values, uk, wk),
                                                         moved(in.v.values, uv, wv), in.first_values, s, nullptr));
            },
            {0.0})[0];
      };
      // bf16: every element is off by up to 1/256 of itself, o before it is used too.
      const auto near = [&](const char* name, const Tensor& gradient, const Values& u, double expected) {
        const Values got = c.values_of(gradient);
        EXPECT_NEAR(inner(got, u), expected, a.dtype == DType::f32 ? 2e-3 : 0.01 * std::sqrt(inner(got, got)))
            << name << " " << name_of(a);
      };
      near("dq", dq, uq, along(1, 0, 0));
      near("dk", dk, uk, along(0, 1, 0));
      near("dv", dv, uv, along(0, 0, 1));
      c.same_bits("dq " + name_of(a), dq);
      c.same_bits("dk " + name_of(a), dk);
      c.same_bits("dv " + name_of(a), dv);
    }
  });
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Inputs in = make_inputs(c, {{1, 4, 2, 2, 8}, false, DType::f32});
  EXPECT_THROW(
      c.stream().attention(in.o, in.lse, in.q.tensor, in.k.tensor, in.v.tensor, {}, AttentionShape{1, 4, 3, 2, 8}),
      Error);
  const Input future = c.input(DType::i32, {4}, {0, 0, 3, 0});  // the third token may not attend to itself
  EXPECT_THROW(c.stream().attention(in.o, in.lse, in.q.tensor, in.k.tensor, in.v.tensor, future.tensor,
                                    AttentionShape{1, 4, 2, 2, 8}),
               Error);
}

}  // namespace
}  // namespace orthant::test::attention_test
