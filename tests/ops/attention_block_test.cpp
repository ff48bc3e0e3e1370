// Attention in blocks of keys: any cut of the sequence, merged, is attention of the whole.
#include <algorithm>
#include <numeric>

#include "tests/ops/oracle.h"

namespace orthant::test::attention_block_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using Places = std::vector<std::int64_t>;  // of a rank's rows in the sequence

enum class Cut { contiguous, zigzag, shuffled };

// Which places each of the ranks holds. zigzag: 2 * ranks runs, rank r has run r and run 2 * ranks - 1 - r.
std::vector<Places> cut_sequence(Cut cut, std::int64_t positions, std::int64_t ranks) {
  std::vector<Places> held(ranks);
  for (std::int64_t i = 0; i < positions; ++i) {
    const std::int64_t run = i * 2 * ranks / positions;
    const std::int64_t rank = cut == Cut::contiguous ? i * ranks / positions
                              : cut == Cut::zigzag   ? std::min(run, 2 * ranks - 1 - run)
                                                     : i * 7 % 5 % ranks;
    held[rank].push_back(cut == Cut::shuffled ? positions - 1 - i : i);
  }
  if (cut == Cut::shuffled) {
    for (Places& places : held) {
      std::rotate(places.begin(), places.begin() + static_cast<std::int64_t>(places.size() / 3), places.end());
    }
  }
  return held;
}

Values as_values(const Places& places) {
  return {places.begin(), places.end()};
}

// Rows of [batch, positions, width] at these places of every sequence.
Values rows_at(const Values& whole, const Places& places, std::int64_t batch, std::int64_t positions,
               std::int64_t width) {
  Values rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (const std::int64_t place : places) {
      const auto row = whole.begin() + (b * positions + place) * width;
      rows.insert(rows.end(), row, row + width);
    }
  }
  return rows;
}

// The adjoint of rows_at: puts rows back to their places.
void put_rows(Values& whole, const Values& rows, const Places& places, std::int64_t batch, std::int64_t positions,
              std::int64_t width) {
  auto from = rows.begin();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (const std::int64_t place : places) {
      std::copy(from, from + width, whole.begin() + (b * positions + place) * width);
      from += width;
    }
  }
}

struct BlockCase {
  AttentionShape shape;  // of the whole
  bool packed;           // documents of 5 positions
  DType dtype;
  Cut cut;
  std::int64_t ranks;
  bool both = false;  // a token sees what comes after it too, of its document or sequence
};

struct Whole {
  Values q, k, v, d_o, first;  // first [T], [2, T] or empty
};

struct Result {
  Values o, dq, dk, dv;  // [T, width] of the whole
  Values lse;            // [batch, h, positions]
};

Whole make_whole(OpContext& c, const BlockCase& a) {
  const AttentionShape& s = a.shape;
  const std::int64_t rows = s.batch * s.positions;
  Whole w;
  w.q = c.normal(a.dtype, {rows, s.heads * s.head_dim}, 1.5).values;
  w.k = c.normal(a.dtype, {rows, s.kv_heads * s.head_dim}, 1.5).values;
  w.v = c.normal(a.dtype, {rows, s.kv_heads * s.head_dim}, 1).values;
  w.d_o = c.normal(a.dtype, {rows, s.heads * s.head_dim}, 1).values;
  for (std::int64_t t = 0; t < rows && (a.packed || a.both); ++t) {
    w.first.push_back(static_cast<double>(a.packed ? t % s.positions / 5 * 5 : 0));
  }
  for (std::int64_t t = 0; t < rows && a.both; ++t) {
    const std::int64_t end = a.packed ? t % s.positions / 5 * 5 + 5 : s.positions;
    w.first.push_back(static_cast<double>(std::min(end, s.positions) - 1));
  }
  return w;
}

// Of the tokens at some places of each sequence: [T_q], [2, T_q] or undefined.
Tensor seen_at(OpContext& c, const Values& first, const Places& places, const AttentionShape& s) {
  const std::size_t tokens = static_cast<std::size_t>(s.batch * s.positions);
  Values held;
  for (std::size_t at = 0; at < first.size(); at += tokens) {
    const auto begin = first.begin() + static_cast<std::ptrdiff_t>(at);
    const Values rows = rows_at({begin, begin + static_cast<std::ptrdiff_t>(tokens)}, places, s.batch, s.positions, 1);
    held.insert(held.end(), rows.begin(), rows.end());
  }
  const std::int64_t rows = s.batch * static_cast<std::int64_t>(places.size());
  return first.empty()           ? Tensor{}
         : first.size() > tokens ? c.input(DType::i32, {2, rows}, held).tensor
                                 : c.input(DType::i32, {rows}, held).tensor;
}

// What a ring of ranks computes, one rank and one block after another.
Result run_blocks(OpContext& c, const BlockCase& a, const Whole& w) {
  const AttentionShape& s = a.shape;
  const std::int64_t wide = s.heads * s.head_dim, narrow = s.kv_heads * s.head_dim;
  const std::vector<Places> held = cut_sequence(a.cut, s.positions, a.ranks);
  struct Keys {
    Tensor k, v, dk, dv, position;
  };
  std::vector<Keys> keys;
  for (const Places& places : held) {
    const Shape shape{s.batch * static_cast<std::int64_t>(places.size()), narrow};
    keys.push_back({c.input(a.dtype, shape, rows_at(w.k, places, s.batch, s.positions, narrow)).tensor,
                    c.input(a.dtype, shape, rows_at(w.v, places, s.batch, s.positions, narrow)).tensor,
                    c.constant(DType::f32, shape, 0).tensor, c.constant(DType::f32, shape, 0).tensor,
                    c.input(DType::i32, {static_cast<std::int64_t>(places.size())}, as_values(places)).tensor});
  }
  Result all{Values(w.q.size()), Values(w.q.size()), Values(w.k.size()), Values(w.k.size()),
             Values(static_cast<std::size_t>(s.batch * s.heads * s.positions))};
  for (std::size_t r = 0; r < held.size(); ++r) {
    const Places& places = held[r];
    AttentionShape block = s;
    block.positions = static_cast<std::int64_t>(places.size());
    const Shape shape{s.batch * block.positions, wide}, sums{s.batch, s.heads, block.positions};
    const Tensor q = c.input(a.dtype, shape, rows_at(w.q, places, s.batch, s.positions, wide)).tensor;
    const Tensor d_o = c.input(a.dtype, shape, rows_at(w.d_o, places, s.batch, s.positions, wide)).tensor;
    const Tensor first = seen_at(c, w.first, places, s);
    const Tensor o = c.constant(DType::f32, shape, 0).tensor, lse = c.constant(DType::f32, sums, -infinity).tensor;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Keys& other = keys[(r + i) % keys.size()];
      const Tensor o_block = c.poisoned(DType::f32, shape), lse_block = c.poisoned(DType::f32, sums);
      block.kv_positions = other.position.elements();
      c.stream().attention_block(o_block, lse_block, q, other.k, other.v, keys[r].position, other.position, first,
                                 block);
      c.stream().attention_merge(o, lse, o_block, lse_block, block);
    }
    const Tensor o_final = c.poisoned(a.dtype, shape), dq = c.constant(DType::f32, shape, 0).tensor;
    c.stream().cast(o_final, o);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Keys& other = keys[(r + i) % keys.size()];
      block.kv_positions = other.position.elements();
      c.stream().attention_block_backward(dq, other.dk, other.dv, d_o, q, other.k, other.v, o_final, lse,
                                          keys[r].position, other.position, first, block);
    }
    put_rows(all.o, c.values_of(o), places, s.batch, s.positions, wide);
    put_rows(all.dq, c.values_of(dq), places, s.batch, s.positions, wide);
    const Values rank_lse = c.values_of(lse);
    for (std::int64_t row = 0; row < s.batch * s.heads; ++row) {
      for (std::int64_t i = 0; i < block.positions; ++i) {
        oracle::at(all.lse, row * s.positions + places[i]) = oracle::at(rank_lse, row * block.positions + i);
      }
    }
  }
  for (std::size_t r = 0; r < held.size(); ++r) {
    put_rows(all.dk, c.values_of(keys[r].dk), held[r], s.batch, s.positions, narrow);
    put_rows(all.dv, c.values_of(keys[r].dv), held[r], s.batch, s.positions, narrow);
  }
  return all;
}

void expect_values(OpContext& c, const std::string& name, const Values& got, const Values& expected, double tolerance) {
  const Shape shape{static_cast<std::int64_t>(got.size())};
  c.expect(name, c.input(DType::f64, shape, got).tensor, expected, tolerance);
}

TEST(AttentionBlock, EveryCutGivesTheWhole) {
  on_every_device([](OpContext& c) {
    for (const Cut cut : {Cut::contiguous, Cut::zigzag, Cut::shuffled}) {
      for (const BlockCase& a :
           {BlockCase{{2, 9, 4, 2, 8}, false, DType::f32, cut, 1}, BlockCase{{2, 9, 4, 2, 8}, true, DType::f32, cut, 2},
            BlockCase{{1, 16, 2, 2, 5}, false, DType::bf16, cut, 4},
            BlockCase{{2, 40, 4, 2, 64}, true, DType::bf16, cut, 2},
            BlockCase{{2, 260, 2, 1, 20}, true, DType::f32, cut, 2},
            BlockCase{{1, 400, 2, 2, 32}, false, DType::f32, cut, 3},
            BlockCase{{2, 9, 4, 2, 8}, true, DType::f32, cut, 2, true},
            BlockCase{{1, 200, 2, 1, 32}, false, DType::bf16, cut, 2, true}}) {
        const AttentionShape& s = a.shape;
        const std::string name =
            fmt::format("cut {} of {} for {} {}", static_cast<int>(cut), s.positions, a.ranks, name_of(a.dtype));
        const Whole w = make_whole(c, a);
        const Result got = run_blocks(c, a, w);
        Values lse;
        const Values o = oracle::attention(w.q, w.k, w.v, w.first, s, &lse);
        // Weights and gradients of scores, where products are of bf16.
        const bool rounded = a.dtype == DType::bf16;
        expect_values(c, "o " + name, got.o, o, rounded ? 0.01 : 1e-5);
        expect_values(c, "lse " + name, got.lse, lse, 2e-6);
        // Gradients against those of the whole, which attention_test.cpp holds to finite differences.
        const std::int64_t rows = s.batch * s.positions;
        const Shape wide{rows, s.heads * s.head_dim}, narrow{rows, s.kv_heads * s.head_dim};
        const Tensor q = c.input(a.dtype, wide, w.q).tensor, k = c.input(a.dtype, narrow, w.k).tensor;
        const Tensor v = c.input(a.dtype, narrow, w.v).tensor, d_o = c.input(a.dtype, wide, w.d_o).tensor;
        Places all(static_cast<std::size_t>(s.positions));
        std::iota(all.begin(), all.end(), 0);
        const Tensor first = seen_at(c, w.first, all, s);
        const Tensor o_whole = c.poisoned(a.dtype, wide), dq = c.poisoned(a.dtype, wide);
        const Tensor dk = c.poisoned(a.dtype, narrow), dv = c.poisoned(a.dtype, narrow);
        const Tensor lse_whole = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
        c.stream().attention(o_whole, lse_whole, q, k, v, first, s);
        c.stream().attention_backward(dq, dk, dv, d_o, q, k, v, o_whole, lse_whole, first, s);
        const double tolerance = rounded ? 0.04 : 1e-5;
        expect_values(c, "dq " + name, got.dq, c.values_of(dq), tolerance);
        expect_values(c, "dk " + name, got.dk, c.values_of(dk), tolerance);
        expect_values(c, "dv " + name, got.dv, c.values_of(dv), tolerance);
      }
    }
  });
}

TEST(AttentionBlock, GradientsAgainstFiniteDifferences) {
  on_every_device([](OpContext& c) {
    for (const bool packed : {false, true}) {
      const BlockCase a{{1, 14, 2, 1, 3}, packed, DType::f32, Cut::zigzag, 2, packed};
      const Whole w = make_whole(c, a);
      const Result got = run_blocks(c, a, w);
      const auto loss = [&](const Values& q, const Values& k, const Values& v) {
        return inner(w.d_o, oracle::attention(q, k, v, w.first, a.shape, nullptr));
      };
      expect_values(c, fmt::format("dq {}", packed), got.dq,
                    numeric_gradient([&](const Values& x) { return loss(x, w.k, w.v); }, w.q), 1e-5);
      expect_values(c, fmt::format("dk {}", packed), got.dk,
                    numeric_gradient([&](const Values& x) { return loss(w.q, x, w.v); }, w.k), 1e-5);
      expect_values(c, fmt::format("dv {}", packed), got.dv,
                    numeric_gradient([&](const Values& x) { return loss(w.q, w.k, x); }, w.v), 1e-5);
    }
  });
}

// More keys than queries, keys in any order, queries that see nothing; gradients are added to what is there.
TEST(AttentionBlock, QueriesThatSeeNothing) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::string type = name_of(dtype);
      const AttentionShape s{.batch = 1, .positions = 3, .heads = 2, .kv_heads = 1, .head_dim = 4, .kv_positions = 70};
      Values place(70);
      for (std::int64_t j = 0; j < 70; ++j) {
        oracle::at(place, j) = static_cast<double>(10 + j * 13 % 70);  // 10 .. 79
      }
      const Input q = c.normal(dtype, {3, 8}, 1), k = c.normal(dtype, {70, 4}, 1);
      const Input v = c.normal(dtype, {70, 4}, 1), d_o = c.normal(dtype, {3, 8}, 1);
      const Tensor q_position = c.input(DType::i32, {3}, {9, 10, 90}).tensor;
      const Tensor k_position = c.input(DType::i32, {70}, place).tensor;
      const Tensor first =
          c.input(DType::i32, {3}, {0, 0, 80}).tensor;  // only the second query sees a key, the one at 10
      const Tensor o = c.poisoned(DType::f32, {3, 8}), lse = c.poisoned(DType::f32, {1, 2, 3});
      c.stream().attention_block(o, lse, q.tensor, k.tensor, v.tensor, q_position, k_position, first, s);
      Values expected_o(24, 0.0), expected_lse(6, -infinity), expected_dv(280, 1.0);
      for (std::int64_t h = 0; h < 2; ++h) {
        oracle::at(expected_lse, h * 3 + 1) = 0;
        for (std::int64_t e = 0; e < 4; ++e) {
          oracle::at(expected_o, 8 + h * 4 + e) = oracle::at(v.values, e);
          oracle::at(expected_lse, h * 3 + 1) += oracle::at(q.values, 8 + h * 4 + e) * oracle::at(k.values, e) / 2;
          oracle::at(expected_dv, e) += oracle::at(d_o.values, 8 + h * 4 + e);
        }
      }
      c.expect(type + " o", o, expected_o, 1e-6);
      c.expect(type + " lse", lse, expected_lse, 2e-6);

      // Merged into nothing, nothing merged into it, and it merged again: two equal halves.
      const Tensor total = c.constant(DType::f32, {3, 8}, 0).tensor;
      const Tensor total_lse = c.constant(DType::f32, {1, 2, 3}, -infinity).tensor;
      c.stream().attention_merge(total, total_lse, o, lse, s);
      c.expect(type + " merged into nothing", total, expected_o, 1e-6);
      c.expect(type + " its lse", total_lse, expected_lse, 2e-6);
      c.stream().attention_merge(total, total_lse, c.constant(DType::f32, {3, 8}, 0).tensor,
                                 c.constant(DType::f32, {1, 2, 3}, -infinity).tensor, s);
      c.expect(type + " nothing merged", total, expected_o, 1e-6);
      c.stream().attention_merge(total, total_lse, o, lse, s);
      Values twice = expected_lse;
      for (double& x : twice) {
        x += std::log(2.0);
      }
      c.expect(type + " merged twice", total, expected_o, 1e-6);
      c.expect(type + " lse twice", total_lse, twice, 2e-6);

      // With one key the weight is 1 whatever the scores: dq and dk are 0, dv is d_o.
      const Tensor dq = c.constant(DType::f32, {3, 8}, 1).tensor, dk = c.constant(DType::f32, {70, 4}, 1).tensor;
      const Tensor dv = c.constant(DType::f32, {70, 4}, 1).tensor;
      const Tensor o_final = c.poisoned(dtype, {3, 8});
      c.stream().cast(o_final, o);
      c.stream().attention_block_backward(dq, dk, dv, d_o.tensor, q.tensor, k.tensor, v.tensor, o_final, lse,
                                          q_position, k_position, first, s);
      c.expect(type + " dq", dq, Values(24, 1.0), 1e-6);
      c.expect(type + " dk", dk, Values(280, 1.0), 1e-6);
      c.expect(type + " dv", dv, expected_dv, 1e-6);
    }
  });
}

// Scores far apart between blocks: the merge neither overflows nor loses the greater part.
TEST(AttentionMerge, LargeAndSmallParts) {
  on_every_device([](OpContext& c) {
    const AttentionShape s{.batch = 1, .positions = 4, .heads = 1, .kv_heads = 1, .head_dim = 1};
    const Tensor o = c.input(DType::f32, {4, 1}, {2, 2, 2, std::nan("")}).tensor;
    const Tensor lse = c.input(DType::f32, {1, 1, 4}, {-1e30, 300, 0, 0}).tensor;
    const Tensor o_block = c.input(DType::f32, {4, 1}, {5, 5, 5, 5}).tensor;
    const Tensor lse_block = c.input(DType::f32, {1, 1, 4}, {300, -1e30, std::log(3.0), 0}).tensor;
    c.stream().attention_merge(o, lse, o_block, lse_block, s);
    c.expect("o", o, {5, 2, 4.25, std::nan("")}, 1e-6);
    c.expect("lse", lse, {300, 300, std::log(4.0), std::log(2.0)}, 1e-6);
  });
}

TEST(AttentionBlock, RefusesWhatDoesNotFit) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const AttentionShape s{.batch = 1, .positions = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .kv_positions = 3};
  const Tensor q = c.poisoned(DType::f32, {2, 8}), k = c.poisoned(DType::f32, {3, 4});
  const Tensor o = c.poisoned(DType::f32, {2, 8}), lse = c.poisoned(DType::f32, {1, 2, 2});
  const Tensor q_position = c.input(DType::i32, {2}, {0, 1}).tensor;
  const Tensor k_position = c.input(DType::i32, {3}, {0, 1, 2}).tensor;
  EXPECT_THROW(c.stream().attention_block(o, lse, q, k, k, k_position, k_position, {}, s), Error);
  EXPECT_THROW(c.stream().attention_block(o, lse, q, q, q, q_position, k_position, {}, s), Error);
  EXPECT_THROW(c.stream().attention_block(c.poisoned(DType::bf16, {2, 8}), lse, q, k, k, q_position, k_position, {}, s),
               Error);
  EXPECT_THROW(c.stream().attention_merge(o, lse, k, lse, s), Error);
  EXPECT_THROW(c.stream().attention(o, lse, q, k, k, {}, s), Error);  // as many keys as queries there
  const Tensor three = c.input(DType::i32, {3}, {0, 0, 0}).tensor;
  EXPECT_THROW(c.stream().attention_block(o, lse, q, k, k, q_position, k_position, three, s), Error);
  AttentionShape whole = s;
  whole.kv_positions = 0;
  const Tensor keys = c.poisoned(DType::f32, {2, 4}), before = c.input(DType::i32, {2, 2}, {0, 1, 0, 0}).tensor;
  EXPECT_THROW(c.stream().attention(o, lse, q, keys, keys, before, whole), Error);  // a token sees itself
}

}  // namespace
}  // namespace orthant::test::attention_block_test
