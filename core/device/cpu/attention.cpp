// Attention of whole sequences; see attention_tiles.h for how.
#include <vector>

#include "core/device/attention_check.h"
#include "core/device/cpu/attention_backward.h"
#include "core/device/cpu/attention_tiles.h"
#include "core/device/cpu/cpu_stream.h"

namespace orthant {
namespace {

using namespace attention_tiles;

// The keys that each token sees: [first, itself], or [first, last].
std::vector<KeyRange> ranges_of(const char* operation, const Tensor& first, const AttentionShape& s) {
  const std::int64_t tokens = s.batch * s.positions;
  const std::int32_t* const given = first.defined() ? first.as<std::int32_t>() : nullptr;
  const std::int32_t* const last = given != nullptr && first.rank() == 2 ? given + tokens : nullptr;
  std::vector<KeyRange> ranges(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t most = last == nullptr ? t % s.positions : s.positions - 1;
    const std::int64_t begin = given == nullptr ? 0 : given[t], end = last == nullptr ? most : last[t];
    require(begin >= 0 && begin <= most, "{}: first[{}] is {}, expected a position in [0, {}]", operation, t, begin,
            most);
    require(end >= begin && end <= most, "{}: last[{}] is {}, expected a position in [{}, {}]", operation, t, end,
            begin, most);
    ranges[static_cast<std::size_t>(t)] = {begin, end + 1};
  }
  return ranges;
}

// What is read after tile i0 of head h of a sequence: rows of `of_queries` for the next tile and, while the last head
// that shares keys is at work, the next task's keys and values, where both fit beside this task's.
template <class T>
void look_ahead(Ahead<T>& ahead, std::initializer_list<const Tensor*> of_queries, const Tensor& k, const Tensor& v,
                const Geometry<T>& g, const AttentionShape& s, std::int64_t sequence, std::int64_t h, std::int64_t i0) {
  constexpr std::int64_t most_bytes = 256 * 1024;
  const std::int64_t i = i0 + side < g.queries ? i0 + side : 0;
  const std::int64_t next = sequence * s.heads + h + (i == 0 ? 1 : 0);  // head, of all sequences
  const bool any = next < s.batch * s.heads;
  int part = 0;
  for (const Tensor* const x : of_queries) {
    ahead.set(part++, x->as<T>() + (any ? (next / s.heads * g.queries + i) * g.q_stride + next % s.heads * g.c : 0),
              any ? std::min(side, g.queries - i) : 0, g.q_stride, g.c);
  }
  const std::int64_t group = s.heads / s.kv_heads, task = sequence * s.kv_heads + h / group + 1;
  if (i0 == 0 && (h + 1) % group == 0) {
    const bool fits =
        task < s.batch * s.kv_heads && 2 * g.keys * g.c * static_cast<std::int64_t>(sizeof(T)) <= most_bytes;
    for (const Tensor* const x : {&k, &v}) {
      ahead.set(part++, x->as<T>() + (fits ? task / s.kv_heads * g.keys * g.kv_stride + task % s.kv_heads * g.c : 0),
                fits ? g.keys : 0, g.kv_stride, g.c);
    }
  }
}

}  // namespace

void CpuStream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& first, const AttentionShape& shape) {
  check_attention("attention", o, lse, q, k, v, first, shape);
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const std::vector<KeyRange> ranges = ranges_of("attention", first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Forward<T>>(threads_, shape, [&](Forward<T>& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry<T>& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = token * g.kv_stride + kv * c;
      const Visible visible{ranges.data() + token, nullptr};
      state.load_head(k.as<T>() + kv_at, v.as<T>() + kv_at, visible);
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const std::int64_t at = token * g.q_stride + h * c;
        for (std::int64_t i0 = 0; i0 < g.queries; i0 += side) {
          look_ahead(state.tile.ahead, {&q}, k, v, g, shape, sequence, h, i0);
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
  check_attention_backward(dq, dk, dv, d_o, q, k, v, o, lse, first, shape);
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const std::vector<KeyRange> ranges = ranges_of("attention_backward", first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Backward<T>>(threads_, shape, [&](Backward<T>& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry<T>& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = token * g.kv_stride + kv * c;
      const Visible visible{ranges.data() + token, nullptr};
      state.load_head(k.as<T>() + kv_at, v.as<T>() + kv_at, visible);
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const std::int64_t at = token * g.q_stride + h * c;
        for (std::int64_t i0 = 0; i0 < g.queries; i0 += side) {
          const std::int64_t rows = std::min(side, g.queries - i0);
          look_ahead(state.ahead, {&q, &d_o, &o}, k, v, g, shape, sequence, h, i0);
          state.run(d_o.as<T>() + at, q.as<T>() + at, o.as<T>() + at,
                    lse.as<float>() + (sequence * shape.heads + h) * g.queries, i0, rows, visible);
          store_rows(dq.as<T>() + at + i0 * g.q_stride, g.q_stride, state.dqueries, rows, g, g.scale);
        }
      }
      store_rows(dk.as<T>() + kv_at, g.kv_stride, state.dkeys, g.keys, g, g.score_scale);
      store_rows(dv.as<T>() + kv_at, g.kv_stride, state.dvalues, g.keys, g, 1.0f);
    });
  });
}

}  // namespace orthant
