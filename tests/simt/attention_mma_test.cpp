// Attention of bf16 on the matrix units against scores written out in fp64, on simulated GPUs of all sizes of shared
// memory: documents, windows, groups of heads, odd lengths, and places in any order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "tests/simt/device_library.h"
#include "tests/support/op_harness.h"

namespace orthant::test::attention_mma_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Case {
  const char* name;
  AttentionShape shape;
  Values first, q_position,
      k_position;  // first [T_q] or [2, T_q], q_position [positions], k_position [keys]; empty: none
  // A query and a key that it does not see and that is equal to it: the weight would be large. -1: none.
  std::int64_t blind_query = -1, hidden_key = -1;
  std::int64_t keys() const { return shape.kv_positions == 0 ? shape.positions : shape.kv_positions; }
};

// o, dq [T_q, h c], lse [batch, h, positions], dk, dv [T_k, kv c].
struct Results {
  Values o, lse, dq, dk, dv;
};

double& at(Values& x, std::int64_t i) {
  return x[i];
}
double at(const Values& x, std::int64_t i) {
  return x[i];
}

double dot(const Values& a, std::int64_t a_at, const Values& b, std::int64_t b_at, std::int64_t n) {
  double sum = 0;
  for (std::int64_t e = 0; e < n; ++e) {
    sum += at(a, a_at + e) * at(b, b_at + e);
  }
  return sum;
}

// Row by row from the definition: weights p = softmax(q k' / sqrt(c)) over the keys that are seen, o = p v, and with
// d_p = d_o v', d_s = p (d_p - d_o . o), d_q = d_s k / sqrt(c), d_k = d_s' q / sqrt(c), d_v = p' d_o.
// given_o: o as a backward gets it, which is rounded.
Results reference(const Case& a, const Values& q, const Values& k, const Values& v, const Values& d_o,
                  const Values& given_o) {
  const AttentionShape& s = a.shape;
  const std::int64_t c = s.head_dim, keys = a.keys(), group = s.heads / s.kv_heads;
  const double scale = 1 / std::sqrt(static_cast<double>(c));
  Results r{Values(q.size(), 0.0), Values(s.batch * s.heads * s.positions, -infinity), Values(q.size(), 0.0),
            Values(k.size(), 0.0), Values(v.size(), 0.0)};
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.positions; ++i) {
        const std::int64_t t = b * s.positions + i, row = (t * s.heads + h) * c;
        const std::int64_t tokens = s.batch * s.positions;
        const bool both = static_cast<std::int64_t>(a.first.size()) > tokens;
        const double last = both                   ? at(a.first, tokens + t)
                            : a.q_position.empty() ? static_cast<double>(i)
                                                   : at(a.q_position, i);
        const double first = a.first.empty() ? 0 : at(a.first, t);
        const auto place = [&](std::int64_t j) {
          return a.k_position.empty() ? static_cast<double>(j) : at(a.k_position, j);
        };
        const auto key_row = [&](std::int64_t j) { return ((b * keys + j) * s.kv_heads + h / group) * c; };
        std::vector<std::int64_t> seen;
        double total = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          if (first <= place(j) && place(j) <= last) {
            seen.push_back(j);
            total += std::exp(scale * dot(q, row, k, key_row(j), c));
          }
        }
        if (seen.empty()) {
          continue;
        }
        at(r.lse, (b * s.heads + h) * s.positions + i) = std::log(total);
        const auto weight = [&](std::int64_t j) { return std::exp(scale * dot(q, row, k, key_row(j), c)) / total; };
        const double mean = dot(d_o, row, given_o, row, c);
        for (const std::int64_t j : seen) {
          const double p = weight(j), d_s = p * (dot(d_o, row, v, key_row(j), c) - mean) * scale;
          for (std::int64_t e = 0; e < c; ++e) {
            at(r.o, row + e) += p * at(v, key_row(j) + e);
            at(r.dq, row + e) += d_s * at(k, key_row(j) + e);
            at(r.dk, key_row(j) + e) += d_s * at(q, row + e);
            at(r.dv, key_row(j) + e) += p * at(d_o, row + e);
          }
        }
      }
    }
  }
  return r;
}

// first of documents that end at `ends`, the last one at the sequence's end, the same in each sequence.
Values documents(const AttentionShape& s, const std::vector<std::int64_t>& ends) {
  Values first;
  for (std::int64_t t = 0; t < s.batch * s.positions; ++t) {
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      begin = end <= t % s.positions ? end : begin;
    }
    first.push_back(static_cast<double>(begin));
  }
  return first;
}

// The whole documents, [2, T].
Values both_ways(const AttentionShape& s, std::vector<std::int64_t> ends) {
  Values seen = documents(s, ends);
  ends.push_back(s.positions);
  for (std::int64_t t = 0; t < s.batch * s.positions; ++t) {
    const auto end = std::find_if(ends.begin(), ends.end(), [&](std::int64_t e) { return e > t % s.positions; });
    seen.push_back(static_cast<double>(*end - 1));
  }
  return seen;
}

Values window(const AttentionShape& s, std::int64_t length) {
  Values first;
  for (std::int64_t t = 0; t < s.batch * s.positions; ++t) {
    first.push_back(static_cast<double>(std::max<std::int64_t>(0, t % s.positions - length + 1)));
  }
  return first;
}

std::vector<Case> whole_sequences() {
  const AttentionShape grouped{1, 141, 4, 2, 64}, wide{1, 137, 2, 1, 128}, odd{2, 70, 3, 1, 80};
  const AttentionShape parts{1, 70, 2, 1, 136}, several{2, 66, 4, 2, 40};
  Values own = documents(several, {20});  // the second sequence has other documents than the first
  for (std::int64_t t = 66; t < 132; ++t) {
    own[t] = t - 66 < 50 ? 0 : 50;
  }
  return {{"a single token", {1, 1, 2, 2, 8}, {}, {}, {}},
          {"whole tiles", {1, 128, 1, 1, 32}, {}, {}, {}},
          {"grouped heads", grouped, {}, {}, {}},
          {"wide heads, documents", wide, documents(wide, {1, 64, 65, 130}), {}, {}},
          {"grouped heads, a window", grouped, window(grouped, 70), {}, {}},
          {"80 channels, a window shorter than a tile", odd, window(odd, 5), {}, {}},
          {"the widest heads", {1, 77, 2, 1, 256}, {}, {}, {}},
          {"heads of a part and a bit, documents", parts, documents(parts, {33, 64}), {}, {}},
          {"sequences of different documents", several, own, {}, {}},
          {"both ways", grouped, both_ways(grouped, {}), {}, {}},
          {"both ways in documents", odd, both_ways(odd, {3, 64}), {}, {}}};
}

// A rank's rows: runs of `run` places each, from these on.
Values runs(const std::vector<std::int64_t>& begins, std::int64_t run) {
  Values places;
  for (const std::int64_t begin : begins) {
    for (std::int64_t i = 0; i < run; ++i) {
      places.push_back(static_cast<double>(begin + i));
    }
  }
  return places;
}

std::vector<Case> ring_blocks() {
  const AttentionShape zigzag{2, 90, 2, 1, 64, 90}, uneven{1, 70, 2, 1, 128, 101}, later{1, 40, 1, 1, 32, 33};
  Values shuffled, first;
  for (std::int64_t j = 0; j < 101; ++j) {
    shuffled.push_back(static_cast<double>(j * 37 % 101));
  }
  for (std::int64_t i = 0; i < 70; ++i) {
    first.push_back(static_cast<double>(i % 7 == 3 ? 150 : i));  // every seventh query sees nothing
  }
  // One query does not see one end of a tile of keys, which all others see.
  const AttentionShape corner{1, 128, 1, 1, 64, 128};
  Values one_less(128, 0.0);
  one_less[5] = 1;
  Values document(180, 0.0);
  for (std::int64_t t = 0; t < 180; ++t) {
    document[t] = t % 90 < 45 ? 0 : 60;
  }
  const AttentionShape source{1, 70, 2, 1, 64, 101};
  Values of_source(140, 0.0);
  std::fill(of_source.begin() + 70, of_source.end(), 79.0);
  of_source[70 + 4] = -1;  // this query sees nothing
  return {{"zig-zag slices, documents", zigzag, document, runs({45, 90}, 45), runs({0, 135}, 45)},
          {"keys in any order, rows without one", uneven, first, runs({31}, 70), shuffled},
          {"the last key of a tile hidden from a query", corner, {}, runs({126}, 128), runs({0}, 128), 0, 127},
          {"the first key of a tile hidden from a query", corner, one_less, runs({127}, 128), runs({0}, 128), 5, 0},
          {"keys of later places alone", later, {}, runs({0}, 40), runs({40}, 33)},
          {"a source of 80 keys and padding", source, of_source, runs({0}, 70), runs({0}, 101)}};
}

struct Tensors {
  Input q, k, v, d_o;
  Tensor first, q_position, k_position;
};

Tensors make_tensors(OpContext& c, const Case& a) {
  const AttentionShape& s = a.shape;
  const Shape wide{s.batch * s.positions, s.heads * s.head_dim}, narrow{s.batch * a.keys(), s.kv_heads * s.head_dim};
  const auto places = [&](const Values& x) {
    return x.empty() ? Tensor{} : c.input(DType::i32, {static_cast<std::int64_t>(x.size())}, x).tensor;
  };
  const Input q = c.normal(DType::bf16, wide, 1.2);
  Input k = c.normal(DType::bf16, narrow, 1.2);
  if (a.blind_query >= 0) {
    for (std::int64_t e = 0; e < narrow[1]; ++e) {
      at(k.values, a.hidden_key * narrow[1] + e) = at(q.values, a.blind_query * wide[1] + e);
    }
    k = c.input(DType::bf16, narrow, k.values);
  }
  return {q,
          k,
          c.normal(DType::bf16, narrow, 1),
          c.normal(DType::bf16, wide, 1),
          static_cast<std::int64_t>(a.first.size()) > wide[0] ? c.input(DType::i32, {2, wide[0]}, a.first).tensor
                                                              : places(a.first),
          places(a.q_position),
          places(a.k_position)};
}

// On every GPU; and the bits that come out are the same there, and each time.
void on_every_gpu(const Case& a, const std::function<void(OpContext&)>& body) {
  std::map<std::string, std::vector<std::byte>> bits;
  for (const char* gpu : {"80", "86", "90", "80"}) {
    SCOPED_TRACE(std::string(a.name) + " on sm_" + gpu);
    const WithVariable architecture("ORTHANT_SIMT_ARCHITECTURE", gpu);
    const auto device = make_device("simt", 1);
    OpContext c(*device);
    body(c);
    EXPECT_TRUE(bits.empty() || bits == c.results()) << "other bits";
    bits = c.results();
  }
}

TEST(AttentionMma, WholeSequencesForward) {
  for (const Case& a : whole_sequences()) {
    const AttentionShape& s = a.shape;
    on_every_gpu(a, [&](OpContext& c) {
      const Tensors x = make_tensors(c, a);
      const Tensor o = c.poisoned(DType::bf16, x.q.tensor.shape());
      const Tensor lse = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
      c.stream().attention(o, lse, x.q.tensor, x.k.tensor, x.v.tensor, x.first, s);
      const Results expected = reference(a, x.q.values, x.k.values, x.v.values, x.d_o.values, c.values_of(o));
      c.expect("o", o, expected.o, 0.01);
      c.expect("lse", lse, expected.lse, 2e-6);
    });
  }
}

TEST(AttentionMma, BlocksOfARingForward) {
  for (const Case& a : ring_blocks()) {
    const AttentionShape& s = a.shape;
    on_every_gpu(a, [&](OpContext& c) {
      const Tensors x = make_tensors(c, a);
      const Tensor o = c.poisoned(DType::f32, x.q.tensor.shape());
      const Tensor lse = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
      c.stream().attention_block(o, lse, x.q.tensor, x.k.tensor, x.v.tensor, x.q_position, x.k_position, x.first, s);
      const Results expected = reference(a, x.q.values, x.k.values, x.v.values, x.d_o.values, c.values_of(o));
      c.expect("o", o, expected.o, 0.008);
      c.expect("lse", lse, expected.lse, 2e-6);
    });
  }
}

// Weights and d_s are rounded to bf16 before they are multiplied; the largest of a row shows where its sum cancels.
constexpr double of_gradients = 0.04;

TEST(AttentionMma, WholeSequencesBackward) {
  for (const Case& a : whole_sequences()) {
    const AttentionShape& s = a.shape;
    on_every_gpu(a, [&](OpContext& c) {
      const Tensors x = make_tensors(c, a);
      const Tensor &q = x.q.tensor, &k = x.k.tensor, &v = x.v.tensor;
      const Tensor o = c.poisoned(DType::bf16, q.shape()), dq = c.poisoned(DType::bf16, q.shape());
      const Tensor dk = c.poisoned(DType::bf16, k.shape()), dv = c.poisoned(DType::bf16, k.shape());
      const Tensor lse = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
      c.stream().attention(o, lse, q, k, v, x.first, s);
      c.stream().attention_backward(dq, dk, dv, x.d_o.tensor, q, k, v, o, lse, x.first, s);
      const Results expected = reference(a, x.q.values, x.k.values, x.v.values, x.d_o.values, c.values_of(o));
      c.expect("dq", dq, expected.dq, of_gradients);
      c.expect("dk", dk, expected.dk, of_gradients);
      c.expect("dv", dv, expected.dv, of_gradients);
    });
  }
}

// They are added to what is there.
TEST(AttentionMma, BlocksOfARingBackward) {
  for (const Case& a : ring_blocks()) {
    const AttentionShape& s = a.shape;
    on_every_gpu(a, [&](OpContext& c) {
      const Tensors x = make_tensors(c, a);
      const Tensor &q = x.q.tensor, &k = x.k.tensor, &v = x.v.tensor;
      const Tensor o = c.poisoned(DType::f32, q.shape()), o_rounded = c.poisoned(DType::bf16, q.shape());
      const Tensor lse = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
      const Tensor dq = c.constant(DType::f32, q.shape(), 0.25).tensor,
                   dk = c.constant(DType::f32, k.shape(), 0.5).tensor;
      const Tensor dv = c.constant(DType::f32, k.shape(), -0.25).tensor;
      c.stream().attention_block(o, lse, q, k, v, x.q_position, x.k_position, x.first, s);
      c.stream().cast(o_rounded, o);
      c.stream().attention_block_backward(dq, dk, dv, x.d_o.tensor, q, k, v, o_rounded, lse, x.q_position, x.k_position,
                                          x.first, s);
      Results expected = reference(a, x.q.values, x.k.values, x.v.values, x.d_o.values, c.values_of(o_rounded));
      const auto more = [](Values& values, double by) {
        for (double& one : values) {
          one += by;
        }
      };
      more(expected.dq, 0.25);
      more(expected.dk, 0.5);
      more(expected.dv, -0.25);
      c.expect("dq", dq, expected.dq, of_gradients);
      c.expect("dk", dk, expected.dk, of_gradients);
      c.expect("dv", dv, expected.dv, of_gradients);
    });
  }
}

double furthest(const Values& got, const Values& expected) {
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, std::abs(got[i] - expected[i]));
  }
  return most;
}

// Weights that are rounded to bf16 are the matrix units': the plain tiles, whose heads are of other sizes, keep fp32.
TEST(AttentionMma, IsTakenWhereHeadsFit) {
  const auto device = make_device("simt", 1);
  OpContext c(*device);
  for (const std::int64_t channels : {64, 60}) {
    const Case a{"", {1, 50, 1, 1, channels}, {}, runs({0}, 50), runs({0}, 50)};
    const Tensors x = make_tensors(c, a);
    const Shape shape{50, channels};
    const Tensor &q = x.q.tensor, &k = x.k.tensor, &v = x.v.tensor;
    const Tensor o = c.poisoned(DType::f32, shape), lse = c.poisoned(DType::f32, {1, 1, 50});
    c.stream().attention_block(o, lse, q, k, v, x.q_position, x.k_position, {}, a.shape);
    const Tensor rounded = c.poisoned(DType::bf16, shape), dq = c.constant(DType::f32, shape, 0).tensor,
                 dk = c.constant(DType::f32, shape, 0).tensor, dv = c.constant(DType::f32, shape, 0).tensor;
    c.stream().cast(rounded, o);
    c.stream().attention_block_backward(dq, dk, dv, x.d_o.tensor, q, k, v, rounded, lse, x.q_position, x.k_position, {},
                                        a.shape);
    const Results expected = reference(a, x.q.values, x.k.values, x.v.values, x.d_o.values, c.values_of(rounded));
    for (const auto& [name, got, of] :
         {std::tuple("o", o, expected.o), {"dq", dq, expected.dq}, {"dk", dk, expected.dk}, {"dv", dv, expected.dv}}) {
      const double off = furthest(c.values_of(got), of);
      EXPECT_EQ(off > 1e-4, channels == 64) << name << " of " << channels << " channels: " << off;
    }
  }
}

}  // namespace
}  // namespace orthant::test::attention_mma_test
