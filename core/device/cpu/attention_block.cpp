// Attention of some queries to some keys, and the merge of such partial results; see attention_tiles.h for how.
#include <numeric>
#include <vector>

#include "core/device/attention_check.h"
#include "core/device/cpu/attention_backward.h"
#include "core/device/cpu/attention_tiles.h"
#include "core/device/cpu/cpu_stream.h"

namespace orthant {
namespace {

using namespace attention_tiles;

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
    const std::int64_t tokens = s.batch * s.positions;
    const std::int32_t* const given = first.defined() ? first.as<std::int32_t>() : nullptr;
    const std::int32_t* const last = given != nullptr && first.rank() == 2 ? given + tokens : nullptr;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int32_t lowest = given == nullptr ? 0 : given[t];
      const std::int32_t highest = last == nullptr ? own[t % s.positions] : last[t];
      ranges[t] = {keys_before([&](std::int32_t p) { return p >= lowest; }),
                   keys_before([&](std::int32_t p) { return p > highest; })};
    }
  }

  Visible of(std::int64_t token) const { return {ranges.data() + token, order.data()}; }
};

bool sees_anything(const Visible& visible, std::int64_t queries) {
  return visible.span(0, queries).end > 0;
}

}  // namespace

void CpuStream::attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                                const AttentionShape& shape) {
  check_attention_block(o, lse, q, k, v, q_position, k_position, first, shape);
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const BlockView view(q_position, k_position, first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Forward<T>>(threads_, shape, [&](Forward<T>& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry<T>& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = sequence * g.keys * g.kv_stride + kv * c;
      const Visible visible = view.of(token);
      if (sees_anything(visible, g.queries)) {
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
  check_attention_block_backward(dq, dk, dv, d_o, q, k, v, o, lse, q_position, k_position, first, shape);
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  const BlockView view(q_position, k_position, first, shape);
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Backward<T>>(threads_, shape, [&](Backward<T>& state, std::int64_t sequence, std::int64_t kv) {
      const Geometry<T>& g = state.g;
      const std::int64_t token = sequence * g.queries, kv_at = sequence * g.keys * g.kv_stride + kv * c;
      const Visible visible = view.of(token);
      if (!sees_anything(visible, g.queries)) {
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
      add_rows(dk.as<float>() + kv_at, visible.order, g.kv_stride, state.dkeys, g.keys, g, g.score_scale);
      add_rows(dv.as<float>() + kv_at, visible.order, g.kv_stride, state.dvalues, g.keys, g, 1.0f);
    });
  });
}

void CpuStream::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block, const Tensor& lse_block,
                                const AttentionShape& shape) {
  check_attention_merge(o, lse, o_block, lse_block, shape);
  const std::int64_t positions = shape.positions, heads = shape.heads, c = shape.head_dim;
  const std::int64_t rows = shape.batch * positions, width = heads * c;
  parallel_for(threads_, rows, 8192 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
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
        float* to = o.as<float>() + t * width + h * c;
        const float* from = o_block.as<float>() + t * width + h * c;
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
