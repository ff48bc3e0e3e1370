// Attention of some queries to some keys, and the merge of such partial results; see attention_tiles.h for how.
#include <numeric>
#include <vector>

#include "core/check.h"
#include "core/cpu/attention_tiles.h"
#include "core/cpu/cpu_stream.h"

namespace orthant {
namespace {

using namespace attention_tiles;

void check_heads(const char* operation, const AttentionShape& s) {
  require(s.head_dim > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "{}: {} heads of {} channels cannot share {} KV heads", operation, s.heads, s.head_dim, s.kv_heads);
}

// All arguments but o, whose dtype differs.
void check(const char* operation, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
           const Tensor& q_position, const Tensor& k_position, const Tensor& first, const AttentionShape& s) {
  check_heads(operation, s);
  const std::int64_t keys = Geometry(s).keys;
  const Shape wide{s.batch * s.positions, s.heads * s.head_dim}, narrow{s.batch * keys, s.kv_heads * s.head_dim};
  require_float(operation, "q", q);
  require_shape(operation, "q", q, wide);
  require_tensor(operation, "k", k, q.dtype(), narrow);
  require_tensor(operation, "v", v, q.dtype(), narrow);
  require_tensor(operation, "lse", lse, DType::f32, {s.batch, s.heads, s.positions});
  require_tensor(operation, "q_position", q_position, DType::i32, {s.positions});
  require_tensor(operation, "k_position", k_position, DType::i32, {keys});
  if (first.defined()) {
    require_dtype(operation, "first", first, {DType::i32});
    require_elements(operation, "first", first, s.batch * s.positions);
  }
}

// What every query of the call sees.
struct BlockView {
  std::vector<std::int32_t> order;  // the keys' rows in ascending order of place
  std::vector<KeyRange> ranges;     // of each of the T_q queries

  BlockView(const Tensor& q_position, const Tensor& k_position, const Tensor& first, const AttentionShape& s)
      : order(static_cast<std::size_t>(k_position.elements())),
        ranges(static_cast<std::size_t>(s.batch * s.positions)) {
    const auto *place = k_position.as<std::int32_t>(), *own = q_position.as<std::int32_t>();
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return place[a] < place[b]; });
    // The number of keys before the first place for which `is_past` holds.
    const auto keys_before = [&](auto&& is_past) {
      return std::partition_point(order.begin(), order.end(), [&](std::int32_t j) { return !is_past(place[j]); }) -
             order.begin();
    };
    for (std::int64_t t = 0; t < s.batch * s.positions; ++t) {
      const std::int32_t lowest = first.defined() ? first.as<std::int32_t>()[t] : 0, highest = own[t % s.positions];
      ranges[static_cast<std::size_t>(t)] = {keys_before([&](std::int32_t p) { return p >= lowest; }),
                                             keys_before([&](std::int32_t p) { return p > highest; })};
    }
  }

  Visible of(std::int64_t token) const { return {ranges.data() + token, order.data()}; }
};

bool sees_anything(const Visible& visible, const Geometry& g) {
  return visible.span(0, g.queries).end > 0;
}

}  // namespace

void CpuStream::attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                                const AttentionShape& shape) {
  check("attention_block", lse, q, k, v, q_position, k_position, first, shape);
  require_tensor("attention_block", "o", o, DType::f32, q.shape());
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const BlockView view(q_position, k_position, first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Forward>(threads_, shape, [&](Forward& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = sequence * g.keys * g.kv_stride + kv * c;
      const Visible visible = view.of(token);
      if (sees_anything(visible, g)) {
        state.load_head(k.as<T>() + kv_at, v.as<T>() + kv_at, visible);
      }
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const std::int64_t at = token * g.q_stride + h * c;
        for (std::int64_t i0 = 0; i0 < g.queries; i0 += side) {
          state.run(o.as<float>() + at, lse.as<float>() + (sequence * shape.heads + h) * g.queries, q.as<T>() + at, i0,
                    std::min(side, g.queries - i0), visible);
        }
      }
    });
  });
}

void CpuStream::attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                         const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                         const Tensor& lse, const Tensor& q_position, const Tensor& k_position,
                                         const Tensor& first, const AttentionShape& shape) {
  check("attention_block_backward", lse, q, k, v, q_position, k_position, first, shape);
  require_tensor("attention_block_backward", "o", o, q.dtype(), q.shape());
  require_tensor("attention_block_backward", "d_o", d_o, q.dtype(), q.shape());
  require_tensor("attention_block_backward", "dq", dq, DType::f32, q.shape());
  require_tensor("attention_block_backward", "dk", dk, DType::f32, k.shape());
  require_tensor("attention_block_backward", "dv", dv, DType::f32, k.shape());
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const BlockView view(q_position, k_position, first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Backward>(threads_, shape, [&](Backward& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = sequence * g.keys * g.kv_stride + kv * c;
      const Visible visible = view.of(token);
      if (!sees_anything(visible, g)) {
        return;
      }
      state.load_head(k.as<T>() + kv_at, v.as<T>() + kv_at, visible);
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const std::int64_t at = token * g.q_stride + h * c;
        for (std::int64_t i0 = 0; i0 < g.queries; i0 += side) {
          const std::int64_t rows = std::min(side, g.queries - i0);
          state.run(d_o.as<T>() + at, q.as<T>() + at, o.as<T>() + at,
                    lse.as<float>() + (sequence * shape.heads + h) * g.queries, i0, rows, visible);
          add_rows(dq.as<float>() + at + i0 * g.q_stride, nullptr, g.q_stride, state.dqueries, rows, g, g.scale);
        }
      }
      add_rows(dk.as<float>() + kv_at, visible.order, g.kv_stride, state.dkeys, g.keys, g, 1.0f);
      add_rows(dv.as<float>() + kv_at, visible.order, g.kv_stride, state.dvalues, g.keys, g, 1.0f);
    });
  });
}

void CpuStream::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block, const Tensor& lse_block,
                                const AttentionShape& shape) {
  const std::int64_t positions = shape.positions, heads = shape.heads, c = shape.head_dim;
  const Shape rows{shape.batch * positions, heads * c}, sums{shape.batch, heads, positions};
  check_heads("attention_merge", shape);
  require_tensor("attention_merge", "o", o, DType::f32, rows);
  require_tensor("attention_merge", "o_block", o_block, DType::f32, rows);
  require_tensor("attention_merge", "lse", lse, DType::f32, sums);
  require_tensor("attention_merge", "lse_block", lse_block, DType::f32, sums);
  parallel_for(threads_, rows[0], 8192 / (rows[1] + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t row = (t / positions * heads + h) * positions + t % positions;
        float& total = lse.as<float>()[row];
        const float added = lse_block.as<float>()[row];
        if (added == -std::numeric_limits<float>::infinity()) {
          continue;  // the block adds nothing, also where nothing was seen before
        }
        const float top = std::max(total, added);
        const float before = std::exp(total - top), more = std::exp(added - top), sum = before + more;
        const float keep = before / sum, take = more / sum;
        float* to = o.as<float>() + t * rows[1] + h * c;
        const float* from = o_block.as<float>() + t * rows[1] + h * c;
#pragma omp simd
        for (std::int64_t e = 0; e < c; ++e) {
          to[e] = keep * to[e] + take * from[e];
        }
        total = top + std::log(sum);
      }
    }
  });
}

}  // namespace orthant
