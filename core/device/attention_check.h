// Argument checks of rotary positions and attention, the same for every device (ops.h). What only the elements of a
// tensor tell is left to the device.
#pragma once

#include <orthant/ops.h>

#include "core/base/check.h"

namespace orthant {

// v undefined, k too, where there are no KV heads; q, where there are no heads.
inline void check_rotary(const char* operation, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
                         const Tensor& position, const RotaryShape& shape) {
  require_float(operation, "qkv", qkv);
  require_rank(operation, "qkv", qkv, 2);
  const std::int64_t rows = qkv.dim(0), c = shape.head_dim;
  require_shape(operation, "qkv", qkv, {rows, (shape.heads + 2 * shape.kv_heads) * c});
  if (shape.heads > 0) {
    require_tensor(operation, "q", q, qkv.dtype(), {rows, shape.heads * c});
  }
  if (shape.kv_heads > 0) {
    require_tensor(operation, "k", k, qkv.dtype(), {rows, shape.kv_heads * c});
    require_tensor(operation, "v", v, qkv.dtype(), {rows, shape.kv_heads * c});
  }
  if (shape.theta != 0) {
    require(shape.plain >= 0 && shape.plain <= c && (c - shape.plain) % 2 == 0,
            "{}: rotary positions turn pairs of channels, but {} of {} of a head stay", operation, shape.plain, c);
    require(shape.scaling.factor > 0, "{}: frequencies are divided by {}, which is not above 0", operation,
            shape.scaling.factor);
    require(!shape.scaling.divided || (c - shape.plain) / 2 <= most_divided_pairs,
            "{}: {} pairs of a head have divisors, {} is the most", operation, (c - shape.plain) / 2,
            most_divided_pairs);
    require_dtype(operation, "position", position, {DType::i32});
    require_elements(operation, "position", position, rows);
  }
}

// Which keys each of `rows` queries sees: [rows], or [2, rows].
inline void check_seen(const char* operation, const Tensor& first, std::int64_t rows) {
  if (first.defined()) {
    require_dtype(operation, "first", first, {DType::i32});
    require(first.elements() == rows || first.shape() == Shape({2, rows}),
            "{}: 'first' has the shape {}, expected [{}] or [2, {}]", operation, first.shape(), rows, rows);
  }
}

inline void check_heads(const char* operation, const AttentionShape& s) {
  require(s.head_dim > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "{}: {} heads of {} channels cannot share {} KV heads", operation, s.heads, s.head_dim, s.kv_heads);
}

inline void check_attention(const char* operation, const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                            const Tensor& v, const Tensor& first, const AttentionShape& s) {
  check_heads(operation, s);
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
  check_seen(operation, first, rows);
}

// Gradients of `dtype`.
inline void check_gradients(const char* operation, DType dtype, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                            const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v) {
  require_tensor(operation, "dq", dq, dtype, q.shape());
  require_tensor(operation, "dk", dk, dtype, k.shape());
  require_tensor(operation, "dv", dv, dtype, v.shape());
  require_tensor(operation, "d_o", d_o, q.dtype(), q.shape());
}

inline void check_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                     const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                     const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  check_attention("attention_backward", o, lse, q, k, v, first, s);
  check_gradients("attention_backward", q.dtype(), dq, dk, dv, d_o, q, k, v);
}

// What attention_block and its backward take: all but o, whose dtype differs, and the gradients.
inline void check_block(const char* operation, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                        const AttentionShape& s) {
  check_heads(operation, s);
  const std::int64_t keys = s.kv_positions == 0 ? s.positions : s.kv_positions;
  const Shape wide{s.batch * s.positions, s.heads * s.head_dim}, narrow{s.batch * keys, s.kv_heads * s.head_dim};
  require_float(operation, "q", q);
  require_shape(operation, "q", q, wide);
  require_tensor(operation, "k", k, q.dtype(), narrow);
  require_tensor(operation, "v", v, q.dtype(), narrow);
  require_tensor(operation, "lse", lse, DType::f32, {s.batch, s.heads, s.positions});
  require_tensor(operation, "q_position", q_position, DType::i32, {s.positions});
  require_tensor(operation, "k_position", k_position, DType::i32, {keys});
  check_seen(operation, first, s.batch * s.positions);
}

inline void check_attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                                  const AttentionShape& s) {
  check_block("attention_block", lse, q, k, v, q_position, k_position, first, s);
  require_tensor("attention_block", "o", o, DType::f32, q.shape());
}

inline void check_attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                           const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                           const Tensor& lse, const Tensor& q_position, const Tensor& k_position,
                                           const Tensor& first, const AttentionShape& s) {
  check_block("attention_block_backward", lse, q, k, v, q_position, k_position, first, s);
  require_tensor("attention_block_backward", "o", o, q.dtype(), q.shape());
  check_gradients("attention_block_backward", DType::f32, dq, dk, dv, d_o, q, k, v);
}

inline void check_attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block, const Tensor& lse_block,
                                  const AttentionShape& s) {
  check_heads("attention_merge", s);
  const Shape rows{s.batch * s.positions, s.heads * s.head_dim}, sums{s.batch, s.heads, s.positions};
  require_tensor("attention_merge", "o", o, DType::f32, rows);
  require_tensor("attention_merge", "o_block", o_block, DType::f32, rows);
  require_tensor("attention_merge", "lse", lse, DType::f32, sums);
  require_tensor("attention_merge", "lse_block", lse_block, DType::f32, sums);
}

inline void check_attention_sinks(const char* operation, const Tensor& o, const Tensor& lse, const Tensor& sinks,
                                  const AttentionShape& s) {
  check_heads(operation, s);
  require_float(operation, "o", o);
  require_shape(operation, "o", o, {s.batch * s.positions, s.heads * s.head_dim});
  require_tensor(operation, "lse", lse, DType::f32, {s.batch, s.heads, s.positions});
  require_tensor(operation, "sinks", sinks, DType::f32, {s.heads});
}

inline void check_attention_sinks_backward(const Tensor& dsinks, const Tensor& d_o, const Tensor& o, const Tensor& lse,
                                           const Tensor& sinks, const AttentionShape& s) {
  constexpr const char* name = "attention_sinks_backward";
  check_attention_sinks(name, o, lse, sinks, s);
  require_tensor(name, "dsinks", dsinks, DType::f32, {s.heads});
  require_tensor(name, "d_o", d_o, o.dtype(), o.shape());
}

}  // namespace orthant
