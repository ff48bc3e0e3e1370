// Splitting qkv into q, k, v with rotary positions (Su et al., "RoFormer"), and the adjoint.
#include "core/device/cpu/rotary_table.h"

#include "core/device/attention_check.h"
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/rotary_rule.h"

namespace orthant {
namespace {

// Rotates `half` pairs, of channels at * i and at * i + apart, by the angles whose cosines and sines are given; sign -1
// rotates back.
template <std::int64_t at, class T>
void rotate_pairs(T* to, const T* from, std::int64_t half, std::int64_t apart, const float* cosine, const float* sine,
                  float sign) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = to_float(from[at * i]), b = to_float(from[at * i + apart]), s = sign * sine[i];
    to[at * i] = from_float<T>(a * cosine[i] - b * s);
    to[at * i + apart] = from_float<T>(b * cosine[i] + a * s);
  }
}

template <class T>
void rotate_head(T* to, const T* from, const RotaryShape& shape, const float* cosine, const float* sine, float sign) {
  const std::int64_t half = rotary_pairs(shape), turned = first_rotated(shape), stays = first_plain(shape);
  std::copy(from + stays, from + stays + shape.plain, to + stays);
  if (shape.interleaved) {
    rotate_pairs<2>(to + turned, from + turned, half, 1, cosine, sine, sign);
  } else {
    rotate_pairs<1>(to + turned, from + turned, half, half, cosine, sine, sign);
  }
}

// Calls fn(row, cosine, sine) for every row; the tables are null without rotation.
template <class F>
void for_rows(int threads, RotaryTable& table, const Tensor& position, std::int64_t rows, const RotaryShape& shape,
              F&& fn) {
  const auto* positions = position.as<std::int32_t>();
  if (shape.theta != 0) {
    table.prepare(positions, rows, shape);
  }
  const std::int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  parallel_for(threads, rows, 8192 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (shape.theta != 0) {
        fn(t, table.cosine(t, positions[t]), table.sine(t, positions[t]));
      } else {
        fn(t, static_cast<const float*>(nullptr), static_cast<const float*>(nullptr));
      }
    }
  });
}

// Heads of one row from one place to the other, rotated if there are tables.
template <class T>
void move_heads(T* to, const T* from, std::int64_t heads, const RotaryShape& shape, const float* cosine,
                const float* sine, float sign) {
  const std::int64_t c = shape.head_dim;
  if (cosine == nullptr) {
    std::copy(from, from + heads * c, to);
    return;
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    rotate_head(to + h * c, from + h * c, shape, cosine, sine, sign);
  }
}

}  // namespace

void CpuStream::split_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
                             const Tensor& position, const RotaryShape& shape) {
  check_rotary("split_rotary", q, k, v, qkv, position, shape);
  const std::int64_t c = shape.head_dim, nq = shape.heads * c, nk = shape.kv_heads * c, width = nq + 2 * nk;
  with_float_type(qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    for_rows(threads_, rotary_, position, qkv.dim(0), shape,
             [&](std::int64_t t, const float* cosine, const float* sine) {
               const T* row = qkv.as<T>() + t * width;
               move_heads(q.as<T>() + t * nq, row, shape.heads, shape, cosine, sine, 1.0f);
               move_heads(k.as<T>() + t * nk, row + nq, shape.kv_heads, shape, cosine, sine, 1.0f);
               std::copy(row + nq + nk, row + width, v.as<T>() + t * nk);
             });
  });
}

void CpuStream::merge_rotary_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                      const Tensor& position, const RotaryShape& shape) {
  check_rotary("merge_rotary_backward", dq, dk, dv, dqkv, position, shape);
  const std::int64_t c = shape.head_dim, nq = shape.heads * c, nk = shape.kv_heads * c, width = nq + 2 * nk;
  with_float_type(dqkv.dtype(), [&](auto type) {
    using T = decltype(type);
    for_rows(threads_, rotary_, position, dqkv.dim(0), shape,
             [&](std::int64_t t, const float* cosine, const float* sine) {
               T* row = dqkv.as<T>() + t * width;
               const T* from_v = dv.as<T>() + t * nk;
               move_heads(row, dq.as<T>() + t * nq, shape.heads, shape, cosine, sine, -1.0f);
               move_heads(row + nq, dk.as<T>() + t * nk, shape.kv_heads, shape, cosine, sine, -1.0f);
               std::copy(from_v, from_v + nk, row + nq + nk);
             });
  });
}

}  // namespace orthant
