// Attention with a bias for each distance: forward against whole rows of scores in f64, backward against finite
// differences of that; buckets against the definition's own values.
#include "plugins/encoder_decoder/relative_scores.h"
#include "tests/ops/oracle.h"

namespace orthant::test::relative_scores_test {
namespace {

using encoder_decoder::bucket_of;
using encoder_decoder::RelativeShape;

// Of transformers' T5Attention._relative_position_bucket with 32 buckets and 128 places.
TEST(RelativeBuckets, AreThoseOfT5) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> both = {
      {0, 0},   {1, 17},  {-1, 1},   {7, 23},  {-7, 7},   {8, 24},    {-8, 8},   {15, 25},
      {16, 26}, {40, 28}, {-40, 12}, {64, 30}, {-90, 14}, {-100, 15}, {127, 31}, {500, 31}};
  for (const auto& [distance, bucket] : both) {
    EXPECT_EQ(bucket_of(distance, 32, 128, true), bucket) << distance;
  }
  const std::vector<std::pair<std::int64_t, std::int64_t>> behind = {{5, 0},     {0, 0},     {-1, 1},   {-15, 15},
                                                                     {-16, 16},  {-20, 17},  {-32, 21}, {-64, 26},
                                                                     {-127, 31}, {-128, 31}, {-999, 31}};
  for (const auto& [distance, bucket] : behind) {
    EXPECT_EQ(bucket_of(distance, 32, 128, false), bucket) << distance;
  }
}

struct Case {
  RelativeShape shape;
  std::vector<double> seen;  // [T], [2, T] or empty
};

Values reference(const Case& a, const Values& q, const Values& k, const Values& v, const Values& table) {
  const RelativeShape& s = a.shape;
  const std::int64_t tokens = s.sequences * s.positions, c = s.channels;
  Values o(q.size(), 0.0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t i = t % s.positions, begin = t - i;
    const std::int64_t first = a.seen.empty() ? 0 : static_cast<std::int64_t>(oracle::at(a.seen, t));
    const std::int64_t last = s.both_ways ? static_cast<std::int64_t>(oracle::at(a.seen, tokens + t)) : i;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      Values weight;
      double sum = 0;
      for (std::int64_t j = first; j <= last; ++j) {
        double dot = 0;
        for (std::int64_t e = 0; e < c; ++e) {
          dot += oracle::at(q, (t * s.heads + h) * c + e) * oracle::at(k, ((begin + j) * s.heads + h) * c + e);
        }
        const std::int64_t bucket = bucket_of(j - i, s.buckets, s.distance, s.both_ways);
        weight.push_back(std::exp(static_cast<double>(s.scale) * dot +
                                  oracle::at(table, bucket * s.table_heads + s.first_head + h)));
        sum += weight.back();
      }
      for (std::int64_t j = first; j <= last; ++j) {
        for (std::int64_t e = 0; e < c; ++e) {
          oracle::at(o, (t * s.heads + h) * c + e) +=
              oracle::at(weight, j - first) / sum * oracle::at(v, ((begin + j) * s.heads + h) * c + e);
        }
      }
    }
  }
  return o;
}

TEST(RelativeScores, ForwardAndBackward) {
  on_every_device([](OpContext& c) {
    const RelativeShape small{.sequences = 2,
                              .positions = 7,
                              .heads = 2,
                              .channels = 3,
                              .buckets = 8,
                              .distance = 6,
                              .first_head = 1,
                              .table_heads = 4,
                              .scale = 0.7f};
    RelativeShape both = small;
    both.both_ways = true;
    Values packed, documents;
    for (std::int64_t t = 0; t < 14; ++t) {
      packed.push_back(t % 7 < 3 ? 0 : 3);
    }
    documents = packed;
    for (std::int64_t t = 0; t < 14; ++t) {
      documents.push_back(t % 7 < 3 ? 2 : 6);
    }
    for (const Case& a : {Case{small, {}}, Case{small, packed}, Case{both, documents}}) {
      const RelativeShape& s = a.shape;
      const Shape rows{14, s.heads * s.channels}, of_table{s.buckets, s.table_heads};
      const Input q = c.normal(DType::f32, rows, 1), k = c.normal(DType::f32, rows, 1),
                  v = c.normal(DType::f32, rows, 1);
      const Input d_o = c.normal(DType::f32, rows, 1), table = c.normal(DType::f32, of_table, 1);
      const Tensor seen = a.seen.empty()        ? Tensor()
                          : a.seen.size() == 14 ? c.input(DType::i32, {14}, a.seen).tensor
                                                : c.input(DType::i32, {2, 14}, a.seen).tensor;
      const Tensor o = c.poisoned(DType::f32, rows), lse = c.poisoned(DType::f32, {14, s.heads});
      relative_attention(o, lse, q.tensor, k.tensor, v.tensor, table.tensor, seen, s, c.stream());
      c.expect("o", o, reference(a, q.values, k.values, v.values, table.values), 1e-5);
      const Tensor dq = c.poisoned(DType::f32, rows), dk = c.poisoned(DType::f32, rows),
                   dv = c.poisoned(DType::f32, rows);
      const Tensor dtable = c.constant(DType::f32, of_table, 0.5).tensor;
      relative_attention_backward(dq, dk, dv, dtable, d_o.tensor, q.tensor, k.tensor, v.tensor, lse, table.tensor, seen,
                                  s, c.stream());
      const auto loss = [&](const Values& x, const Values& y, const Values& z, const Values& b) {
        return inner(d_o.values, reference(a, x, y, z, b));
      };
      c.expect("dq", dq,
               numeric_gradient([&](const Values& x) { return loss(x, k.values, v.values, table.values); }, q.values),
               1e-5);
      c.expect("dk", dk,
               numeric_gradient([&](const Values& x) { return loss(q.values, x, v.values, table.values); }, k.values),
               1e-5);
      c.expect("dv", dv,
               numeric_gradient([&](const Values& x) { return loss(q.values, k.values, x, table.values); }, v.values),
               1e-5);
      Values expected =
          numeric_gradient([&](const Values& x) { return loss(q.values, k.values, v.values, x); }, table.values);
      for (double& x : expected) {
        x += 0.5;  // it is added to what is there
      }
      c.expect("dtable", dtable, expected, 1e-5);
    }
  });
}

}  // namespace
}  // namespace orthant::test::relative_scores_test
