// Splitting qkv into q, k, v with rotary positions (Su et al., "RoFormer"), and the adjoint.
#include <numeric>

#include "core/device/attention_check.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_math.h"
#include "core/device/cuda/float_type.h"
#include "core/device/rotary_rule.h"

namespace orthant::cuda {
namespace {

constexpr int rotary_threads = 256;
constexpr std::int64_t most_rows = 8;  // whose angles a block has at a time

// What both directions need. joined: qkv or dqkv [rows, width]; q [rows, heads * c], k and v [rows, kv_heads * c].
template <class T>
struct Move {
  T *q, *k, *v, *joined;
  const std::int32_t* position;  // [rows]; null: no rotation
  std::int64_t rows, heads, kv_heads, c, plain;
  std::int64_t first_rotated, first_plain;  // channels of a head
  double theta;
  RotaryScaling scaling;
  int rows_at_once;
};

// Rotates the pairs at, ..., at + N - 1 of a head; sine is negated to rotate back. A pair has channels i and i + half,
// or 2 i and 2 i + 1 where they are interleaved.
template <bool interleaved, int N, class T>
__device__ void rotate(T* to, const T* from, const float* cosine, const float* sine, std::int64_t at, std::int64_t half,
                       float sign) {
  const std::int64_t first = interleaved ? 2 * at : at, second = interleaved ? 2 * at + N : at + half;
  float low[N], high[N], x[2 * N];
  load_vector(low, from + first);
  load_vector(high, from + second);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i] = low[i];
    x[N + i] = high[i];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float &a = x[interleaved ? 2 * i : i], &b = x[interleaved ? 2 * i + 1 : N + i];
    const float u = a, v = b, s = sign * sine[at + i];
    a = u * cosine[at + i] - v * s;
    b = v * cosine[at + i] + u * s;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    low[i] = x[i];
    high[i] = x[N + i];
  }
  store_vector(to + first, low);
  store_vector(to + second, high);
}

template <int N, class T>
__device__ void copy(T* to, const T* from) {
  *reinterpret_cast<Vector<T, N>*>(to) = *reinterpret_cast<const Vector<T, N>*>(from);
}

// split: joined -> q, k, v; else q, k, v -> joined, rotated back. N elements at a time.
// A block takes rows_at_once rows at a time: their angles first, in fp64 as on the CPU, then all their heads.
template <bool split, bool interleaved, int N, class T>
__global__ void __launch_bounds__(rotary_threads) move_rotary(const Move<T> m) {
  const std::int64_t half = (m.c - m.plain) / 2, nq = m.heads * m.c, nk = m.kv_heads * m.c, width = nq + 2 * nk;
  const bool rotated = m.position != nullptr;
  auto* frequency = dynamic_shared<double>();                 // [half]
  auto* cosine = reinterpret_cast<float*>(frequency + half);  // [rows_at_once, half]
  auto* sine = cosine + m.rows_at_once * half;                // [rows_at_once, half]
  if (rotated) {
    for (std::int64_t i = threadIdx.x; i < half; i += rotary_threads) {
      frequency[i] = rotary_frequency(i, half, m.theta, m.scaling);
    }
  }
  // Work of a row: pairs of its rotated heads, then the channels of those that stay, then what is copied; all in steps
  // of N.
  const std::int64_t turned = rotated ? m.heads + m.kv_heads : 0;
  const std::int64_t steps_of_head = half / N, turns = turned * steps_of_head;
  const std::int64_t steps_of_plain = m.plain / N, stays = turns + turned * steps_of_plain;
  const std::int64_t steps = stays + (width - turned * m.c) / N;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * m.rows_at_once;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * m.rows_at_once; first < m.rows; first += stride) {
    const std::int64_t rows = m.rows - first < m.rows_at_once ? m.rows - first : m.rows_at_once;
    if (rotated) {
      __syncthreads();  // the frequencies are there; the last rows' angles have been used
      for (std::int64_t i = threadIdx.x; i < rows * half; i += rotary_threads) {
        double s = 0, c = 0;
        sincos(static_cast<double>(m.position[first + i / half]) * frequency[i % half], &s, &c);
        cosine[i] = static_cast<float>(m.scaling.magnitude * c);
        sine[i] = static_cast<float>(m.scaling.magnitude * s);
      }
      __syncthreads();
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t t = first + r;
      T* const joined = m.joined + t * width;
      for (std::int64_t step = threadIdx.x; step < steps; step += rotary_threads) {
        // `part`: where column `column` of the joined row lies in q, k or v.
        const std::int64_t column =
            step < turns   ? step / steps_of_head * m.c + m.first_rotated
            : step < stays ? (step - turns) / steps_of_plain * m.c + m.first_plain + (step - turns) % steps_of_plain * N
                           : turned * m.c + (step - stays) * N;
        T* const part = column < nq        ? m.q + t * nq + column
                        : column < nq + nk ? m.k + t * nk + column - nq
                                           : m.v + t * nk + column - nq - nk;
        T* const to = split ? part : joined + column;
        const T* const from = split ? joined + column : part;
        if (step < turns) {
          rotate<interleaved, N>(to, from, cosine + r * half, sine + r * half, step % steps_of_head * N, half,
                                 split ? 1.0f : -1.0f);
        } else {
          copy<N>(to, from);
        }
      }
    }
  }
}

template <bool split>
void run(CudaStream& stream, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& joined,
         const Tensor& position, const RotaryShape& shape) {
  const std::int64_t rows = joined.dim(0), c = shape.head_dim, half = rotary_pairs(shape);
  const int at_once =
      static_cast<int>(std::clamp<std::int64_t>(rotary_threads / std::max<std::int64_t>(half, 1), 1, most_rows));
  const bool rotated = shape.theta != 0;
  const auto shared = static_cast<std::size_t>(rotated ? half : 0) * (sizeof(double) + 2 * sizeof(float) * at_once);
  require(shared <= stream.cuda().shared_memory(),
          "rotary positions: heads of {} channels need {} bytes of shared memory, a block of this GPU has {}", c,
          shared, stream.cuda().shared_memory());
  with_float_type(joined.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto data = [](const Tensor& x) { return x.defined() ? x.as<T>() : nullptr; };
    const Move<T> move{data(q),
                       data(k),
                       data(v),
                       joined.as<T>(),
                       rotated ? position.as<std::int32_t>() : nullptr,
                       rows,
                       shape.heads,
                       shape.kv_heads,
                       c,
                       shape.plain,
                       first_rotated(shape),
                       first_plain(shape),
                       shape.theta,
                       shape.scaling,
                       at_once};
    constexpr int wide = vector_elements<T>;
    const std::int64_t columns = rotated ? std::gcd(half, shape.plain) : c;  // what every run is a multiple of
    const bool vectors = vectorizable(move.joined, columns) && vectorizable(move.q, columns) &&
                         vectorizable(move.k, columns) && vectorizable(move.v, columns);
    const Grid grid{blocks_for(rows, at_once, 16 * stream.cuda().multiprocessors()), rotary_threads,
                    stream.cuda().shared(shared)};
    const auto run_by = [&](auto* neighbours, auto* halves) {
      launch(shape.interleaved ? neighbours : halves, grid, stream.handle(), move);
    };
    if (vectors) {
      run_by(move_rotary<split, true, wide, T>, move_rotary<split, false, wide, T>);
    } else {
      run_by(move_rotary<split, true, 1, T>, move_rotary<split, false, 1, T>);
    }
  });
}

}  // namespace

void CudaStream::split_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
                              const Tensor& position, const RotaryShape& shape) {
  check_rotary("split_rotary", q, k, v, qkv, position, shape);
  run<true>(*this, q, k, v, qkv, position, shape);
}

void CudaStream::merge_rotary_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                       const Tensor& position, const RotaryShape& shape) {
  check_rotary("merge_rotary_backward", dq, dk, dv, dqkv, position, shape);
  run<false>(*this, dq, dk, dv, dqkv, position, shape);
}

}  // namespace orthant::cuda
