// Causal attention of whole sequences; see attention_tiles.h for how.
#include <vector>

#include "core/check.h"
#include "core/cpu/attention_tiles.h"
#include "core/cpu/cpu_stream.h"

namespace orthant {
namespace {

using namespace attention_tiles;

void check(const char* operation, const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
           const Tensor& first, const AttentionShape& s) {
  require(s.head_dim > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "{}: {} heads of {} channels cannot share {} KV heads", operation, s.heads, s.head_dim, s.kv_heads);
  require(s.kv_positions == 0 || s.kv_positions == s.positions,
          "{}: {} keys for {} queries of a sequence; other numbers are for attention_block", operation, s.kv_positions,
          s.positions);
  const std::int64_t rows = s.batch * s.positions;
  require_float(operation, "q", q);
  require_shape(operation, "q", q, {rows, s.heads * s.head_dim});
  require_tensor(operation, "k", k, q.dtype(), {rows, s.kv_heads * s.head_dim});
  require_tensor(operation, "v", v, q.dtype(), {rows, s.kv_heads * s.head_dim});
  require_tensor(operation, "o", o, q.dtype(), q.shape());
  require_tensor(operation, "lse", lse, DType::f32, {s.batch, s.heads, s.positions});
  if (first.defined()) {
    require_dtype(operation, "first", first, {DType::i32});
    require_elements(operation, "first", first, rows);
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int32_t value = first.as<std::int32_t>()[t];
      require(value >= 0 && value <= t % s.positions, "{}: first[{}] is {}, expected a position in [0, {}]", operation,
              t, value, t % s.positions);
    }
  }
}

// The keys that each token sees: [first, itself].
std::vector<KeyRange> causal_ranges(const Tensor& first, const AttentionShape& s) {
  std::vector<KeyRange> ranges(static_cast<std::size_t>(s.batch * s.positions));
  for (std::int64_t t = 0; t < s.batch * s.positions; ++t) {
    ranges[static_cast<std::size_t>(t)] = {first.defined() ? first.as<std::int32_t>()[t] : 0, t % s.positions + 1};
  }
  return ranges;
}

}  // namespace

void CpuStream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& first, const AttentionShape& shape) {
  check("attention", o, lse, q, k, v, first, shape);
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const std::vector<KeyRange> ranges = causal_ranges(first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Forward>(threads_, shape, [&](Forward& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = token * g.kv_stride + kv * c;
      const Visible visible{ranges.data() + token, nullptr};
      state.load_head(k.as<T>() + kv_at, v.as<T>() + kv_at, visible);
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const std::int64_t at = token * g.q_stride + h * c;
        for (std::int64_t i0 = 0; i0 < g.queries; i0 += side) {
          state.run(o.as<T>() + at, lse.as<float>() + (sequence * shape.heads + h) * g.queries, q.as<T>() + at, i0,
                    std::min(side, g.queries - i0), visible);
        }
      }
    });
  });
}

void CpuStream::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                   const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                   const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  check("attention_backward", o, lse, q, k, v, first, shape);
  require_tensor("attention_backward", "dq", dq, q.dtype(), q.shape());
  require_tensor("attention_backward", "dk", dk, q.dtype(), k.shape());
  require_tensor("attention_backward", "dv", dv, q.dtype(), v.shape());
  require_tensor("attention_backward", "d_o", d_o, q.dtype(), q.shape());
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const std::vector<KeyRange> ranges = causal_ranges(first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Backward>(threads_, shape, [&](Backward& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = token * g.kv_stride + kv * c;
      const Visible visible{ranges.data() + token, nullptr};
      state.load_head(k.as<T>() + kv_at, v.as<T>() + kv_at, visible);
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const std::int64_t at = token * g.q_stride + h * c;
        for (std::int64_t i0 = 0; i0 < g.queries; i0 += side) {
          const std::int64_t rows = std::min(side, g.queries - i0);
          state.run(d_o.as<T>() + at, q.as<T>() + at, o.as<T>() + at,
                    lse.as<float>() + (sequence * shape.heads + h) * g.queries, i0, rows, visible);
          store_rows(dq.as<T>() + at + i0 * g.q_stride, g.q_stride, state.dqueries, rows, g, g.scale);
        }
      }
      store_rows(dk.as<T>() + kv_at, g.kv_stride, state.dkeys, g.keys, g, 1.0f);
      store_rows(dv.as<T>() + kv_at, g.kv_stride, state.dvalues, g.keys, g, 1.0f);
    });
  });
}

}  // namespace orthant
