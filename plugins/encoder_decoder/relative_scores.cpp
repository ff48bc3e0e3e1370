#include "relative_scores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace orthant::encoder_decoder {

std::int64_t bucket_of(std::int64_t distance, std::int64_t buckets, std::int64_t farthest, bool both_ways) {
  std::int64_t first = 0, n = -distance;
  if (both_ways) {
    buckets /= 2;
    first = distance > 0 ? buckets : 0;
    n = std::abs(distance);
  } else {
    n = std::max<std::int64_t>(n, 0);
  }
  const std::int64_t exact = buckets / 2;
  if (n < exact) {
    return first + n;
  }
  const double share = std::log(static_cast<double>(n) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(farthest) / static_cast<double>(exact));
  const std::int64_t far = exact + static_cast<std::int64_t>(share * static_cast<double>(buckets - exact));
  return first + std::min(far, buckets - 1);
}

namespace {

// What the host sees of one call: rows of q, k and v by token, and the keys of each token.
class Rows {
 public:
  Rows(const RelativeShape& shape, std::span<const std::int32_t> seen) : shape_(shape), seen_(seen) {
    for (std::int64_t d = 1 - shape.positions; d < shape.positions; ++d) {
      bucket_.push_back(bucket_of(d, shape.buckets, shape.distance, shape.both_ways));
    }
  }
  std::int64_t tokens() const { return shape_.sequences * shape_.positions; }
  std::int64_t first(std::int64_t t) const { return seen_.empty() ? 0 : seen_[static_cast<std::size_t>(t)]; }
  std::int64_t last(std::int64_t t) const {
    return shape_.both_ways ? seen_[static_cast<std::size_t>(tokens() + t)] : t % shape_.positions;
  }
  // Where a head's channels of a token lie, and its number in [T, h].
  std::size_t at(std::int64_t t, std::int64_t head) const {
    return static_cast<std::size_t>((t * shape_.heads + head) * shape_.channels);
  }
  std::size_t number(std::int64_t t, std::int64_t head) const {
    return static_cast<std::size_t>(t * shape_.heads + head);
  }
  // Of key j for query i, both within their sequence: the table's entry.
  std::size_t entry(std::int64_t i, std::int64_t j, std::int64_t head) const {
    const std::int64_t bucket = bucket_[static_cast<std::size_t>(j - i + shape_.positions - 1)];
    return static_cast<std::size_t>(bucket * shape_.table_heads + shape_.first_head + head);
  }
  // Of the keys of token i of a sequence, by their number.
  const std::int64_t* buckets(std::int64_t i) const { return bucket_.data() + shape_.positions - 1 - i; }
  float dot(std::span<const float> a, std::size_t a_at, std::span<const float> b, std::size_t b_at) const {
    float sum = 0;
    const float *x = a.data() + a_at, *y = b.data() + b_at;
    for (std::int64_t e = 0; e < shape_.channels; ++e) {
      sum += x[e] * y[e];
    }
    return sum;
  }
  // to += by * from.
  void add(std::span<float> to, std::size_t to_at, std::span<const float> from, std::size_t from_at, float by) const {
    float* const y = to.data() + to_at;
    const float* const x = from.data() + from_at;
    for (std::int64_t e = 0; e < shape_.channels; ++e) {
      y[e] += by * x[e];
    }
  }

 private:
  const RelativeShape& shape_;
  std::span<const std::int32_t> seen_;
  std::vector<std::int64_t> bucket_;  // by distance + positions - 1
};

// One head of a token: its query, the keys and values of its sequence's tokens, `stride` floats from one to the next,
// and the bias of each key's bucket.
struct Attending {
  const float *q, *k, *v, *bias;
  const std::int64_t* bucket;  // of key j
  std::int64_t stride, channels, table_heads;
  float scale;
};

// o becomes the sum of the values of keys [first, last]. Returns the logarithm of the sum of the exponentials of the
// scores. One function for whole sequences and for single tokens, so that a compiler gives both the same bits.
[[gnu::noinline]] float attend(float* o, const Attending& a, std::int64_t first, std::int64_t last,
                               std::vector<float>& score) {
  float top = -INFINITY;
  for (std::int64_t j = first; j <= last; ++j) {
    float dot = 0;
    const float* const k = a.k + j * a.stride;
    for (std::int64_t e = 0; e < a.channels; ++e) {
      dot += a.q[e] * k[e];
    }
    float& x = score[static_cast<std::size_t>(j)];
    x = a.scale * dot + a.bias[a.bucket[j] * a.table_heads];
    top = std::max(top, x);
  }
  float sum = 0;
  for (std::int64_t j = first; j <= last; ++j) {
    float& x = score[static_cast<std::size_t>(j)];
    x = std::exp(x - top);
    sum += x;
  }
  for (std::int64_t j = first; j <= last; ++j) {
    const float* const v = a.v + j * a.stride;
    const float by = score[static_cast<std::size_t>(j)] / sum;
    for (std::int64_t e = 0; e < a.channels; ++e) {
      o[e] += by * v[e];
    }
  }
  return top + std::log(sum);
}

std::vector<Tensor> with_seen(std::vector<Tensor> inputs, const Tensor& seen) {
  if (seen.defined()) {
    inputs.push_back(seen);
  }
  return inputs;
}

std::span<const std::int32_t> seen_of(const HostArguments& a, std::size_t number, bool has) {
  return has ? a.input<std::int32_t>(number) : std::span<const std::int32_t>();
}

}  // namespace

void relative_attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& table, const Tensor& seen, const RelativeShape& shape, Stream& s) {
  s.apply({.name = "encoder_decoder/relative_attention",
           .inputs = with_seen({q, k, v, table}, seen),
           .outputs = {o, lse},
           .host = [shape, has = seen.defined()](const HostArguments& a) {
             const auto q_rows = a.input<float>(0), k_rows = a.input<float>(1), v_rows = a.input<float>(2);
             const auto bias = a.input<float>(3);
             const auto out = a.output<float>(0), sums = a.output<float>(1);
             const Rows rows(shape, seen_of(a, 4, has));
             std::fill(out.begin(), out.end(), 0.0f);
             std::vector<float> score(static_cast<std::size_t>(shape.positions));
             for (std::int64_t t = 0; t < rows.tokens(); ++t) {
               const std::int64_t i = t % shape.positions, begin = t - i;
               for (std::int64_t h = 0; h < shape.heads; ++h) {
                 const Attending of{.q = q_rows.data() + rows.at(t, h),
                                    .k = k_rows.data() + rows.at(begin, h),
                                    .v = v_rows.data() + rows.at(begin, h),
                                    .bias = bias.data() + shape.first_head + h,
                                    .bucket = rows.buckets(i),
                                    .stride = shape.heads * shape.channels,
                                    .channels = shape.channels,
                                    .table_heads = shape.table_heads,
                                    .scale = shape.scale};
                 sums[rows.number(t, h)] = attend(out.data() + rows.at(t, h), of, rows.first(t), rows.last(t), score);
               }
             }
           }});
}

void relative_attention_step(const Tensor& o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& table,
                             const std::vector<KeptRows>& rows, const RelativeShape& shape, Stream& s) {
  s.apply({.name = "encoder_decoder/relative_attention_step",
           .inputs = {q, k, v, table},
           .outputs = {o},
           .host = [rows, shape](const HostArguments& a) {
             const auto q_rows = a.input<float>(0), k_rows = a.input<float>(1), v_rows = a.input<float>(2);
             const auto bias = a.input<float>(3);
             const auto out = a.output<float>(0);
             const std::int64_t width = shape.heads * shape.channels;
             std::fill(out.begin(), out.end(), 0.0f);
             std::vector<float> score;
             for (const KeptRows& run : rows) {
               const auto take = [&](std::span<const float> from, std::vector<float>& to) {
                 to.resize(static_cast<std::size_t>(run.position * width));
                 const auto begin = from.begin() + run.row * width;
                 to.insert(to.end(), begin, begin + run.rows * width);
               };
               take(k_rows, run.kept->k);
               take(v_rows, run.kept->v);
               const std::int64_t end = run.position + run.rows;
               score.resize(static_cast<std::size_t>(end));
               std::vector<std::int64_t> bucket;  // by distance to the last token, which stands last
               for (std::int64_t j = 1 - end; j <= 0; ++j) {
                 bucket.push_back(bucket_of(j, shape.buckets, shape.distance, false));
               }
               for (std::int64_t r = 0; r < run.rows; ++r) {
                 const std::int64_t i = run.position + r;
                 for (std::int64_t h = 0; h < shape.heads; ++h) {
                   const std::int64_t at = (run.row + r) * width + h * shape.channels;
                   const Attending of{.q = q_rows.data() + at,
                                      .k = run.kept->k.data() + h * shape.channels,
                                      .v = run.kept->v.data() + h * shape.channels,
                                      .bias = bias.data() + shape.first_head + h,
                                      .bucket = bucket.data() + end - 1 - i,
                                      .stride = width,
                                      .channels = shape.channels,
                                      .table_heads = shape.table_heads,
                                      .scale = shape.scale};
                   attend(out.data() + at, of, 0, i, score);
                 }
               }
             }
           }});
}

void relative_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dtable,
                                 const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& lse, const Tensor& table, const Tensor& seen, const RelativeShape& shape,
                                 Stream& s) {
  std::vector<Tensor> inputs = with_seen({q, k, v, table, d_o, lse}, seen), outputs = {dq, dk, dv};
  const std::size_t known = inputs.size();
  const bool learns = dtable.defined();
  if (learns) {
    inputs.push_back(dtable);
    outputs.push_back(dtable);
  }
  s.apply({.name = "encoder_decoder/relative_attention_backward",
           .inputs = inputs,
           .outputs = outputs,
           .host = [shape, has = seen.defined(), learns, known](const HostArguments& a) {
             const auto q_rows = a.input<float>(0), k_rows = a.input<float>(1), v_rows = a.input<float>(2);
             const auto bias = a.input<float>(3), d_out = a.input<float>(4), sums = a.input<float>(5);
             const auto d_q = a.output<float>(0), d_k = a.output<float>(1), d_v = a.output<float>(2);
             const Rows rows(shape, seen_of(a, 6, has));
             for (const auto& to : {d_q, d_k, d_v}) {
               std::fill(to.begin(), to.end(), 0.0f);
             }
             std::vector<double> d_bias(learns ? bias.size() : 0, 0.0);
             std::vector<float> weight(static_cast<std::size_t>(shape.positions)), d_weight(weight.size());
             for (std::int64_t t = 0; t < rows.tokens(); ++t) {
               const std::int64_t i = t % shape.positions, begin = t - i;
               for (std::int64_t h = 0; h < shape.heads; ++h) {
                 const std::size_t own = rows.at(t, h);
                 float mean = 0;  // of the gradients of the weights
                 for (std::int64_t j = rows.first(t); j <= rows.last(t); ++j) {
                   const std::size_t other = rows.at(begin + j, h);
                   const float x = shape.scale * rows.dot(q_rows, own, k_rows, other) + bias[rows.entry(i, j, h)];
                   const std::size_t place = static_cast<std::size_t>(j);
                   weight[place] = std::exp(x - sums[rows.number(t, h)]);
                   d_weight[place] = rows.dot(d_out, own, v_rows, other);
                   mean += weight[place] * d_weight[place];
                 }
                 for (std::int64_t j = rows.first(t); j <= rows.last(t); ++j) {
                   const std::size_t other = rows.at(begin + j, h), entry = rows.entry(i, j, h);
                   const std::size_t place = static_cast<std::size_t>(j);
                   const float d_score = weight[place] * (d_weight[place] - mean);
                   rows.add(d_v, other, d_out, own, weight[place]);
                   rows.add(d_q, own, k_rows, other, d_score * shape.scale);
                   rows.add(d_k, other, q_rows, own, d_score * shape.scale);
                   if (learns) {
                     d_bias[entry] += static_cast<double>(d_score);
                   }
                 }
               }
             }
             if (learns) {
               const auto before = a.input<float>(known);
               const auto to = a.output<float>(3);
               for (std::size_t e = 0; e < d_bias.size(); ++e) {
                 to[e] = before[e] + static_cast<float>(d_bias[e]);
               }
             }
           }});
}

}  // namespace orthant::encoder_decoder
