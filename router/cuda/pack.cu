// pack, combine and their adjoints: token rows to packed rows and back.
//
// One warp has a token: it reads or writes the token's row once, and the K packed rows of its choices, 16 bytes a lane
// and several loads in flight. Floors, in bytes, d being the bytes of a row: pack (1 + K) T d, combine (1 + K) T d,
// combine_backward (1 + 2 K) T d, and 4 to 12 bytes a choice for the plan. Rows that are not multiples of 16 bytes go
// element by element; very narrow ones (weights, one a choice) have a thread for each element.
#include <algorithm>
#include <initializer_list>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/float_type.h"
#include "core/device/cuda/launch.h"
#include "core/device/router_checks.h"
#include "router/cuda/scan.h"

namespace orthant::cuda {
namespace {

constexpr int pack_block_threads = 256, pack_block_warps = pack_block_threads / warp_threads;
constexpr std::int64_t narrow = 16;  // elements of a row below which a warp would mostly idle
constexpr std::int64_t pack_most_blocks = 1 << 20;

__device__ std::int64_t first_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * pack_block_warps + warp();
}
__device__ std::int64_t warp_step() {
  return static_cast<std::int64_t>(gridDim.x) * pack_block_warps;
}

// How rows are read and written: `width` elements at a time, as they lie in memory.
template <class X, int width_>
struct Access {
  static constexpr int width = width_;
  struct alignas(sizeof(X) * width_) Piece {
    X v[width_];
  };
  __device__ static Piece load(const X* p, std::int64_t piece) { return reinterpret_cast<const Piece*>(p)[piece]; }
  __device__ static void store(X* p, std::int64_t piece, const Piece& value) {
    reinterpret_cast<Piece*>(p)[piece] = value;
  }
};

constexpr int ahead = 4;  // loads in flight

// to = the pieces begin, begin + 32, ... of a row, as far as it goes.
template <class A, class X>
__device__ void load_ahead(typename A::Piece (&to)[ahead], const X* row, std::int64_t begin, std::int64_t pieces) {
#pragma unroll
  for (int i = 0; i < ahead; ++i) {
    if (begin + i * warp_threads < pieces) {
      to[i] = A::load(row, begin + i * warp_threads);
    }
  }
}

// Rows of `rows` [R, pieces] that hold no choice become zero: 32 sources a warp at a time.
template <class A, class X>
__device__ void clear_empty_rows(X* rows, const std::int32_t* source, std::int64_t room, std::int64_t pieces) {
  for (std::int64_t base = first_warp() * warp_threads; base < room; base += warp_step() * warp_threads) {
    const bool empty = base + lane() < room && source[base + lane()] < 0;
    for (unsigned left = __ballot_sync(all_lanes, empty ? 1 : 0); left != 0; left &= left - 1) {
      X* const row = rows + (base + __ffs(static_cast<int>(left)) - 1) * pieces * A::width;
      for (std::int64_t piece = lane(); piece < pieces; piece += warp_threads) {
        A::store(row, piece, typename A::Piece{});
      }
    }
  }
}

// rows [R, d], x [T, d], row [T, K], source [R].
template <class A, class X>
__global__ void __launch_bounds__(pack_block_threads)
    pack_rows(X* rows, const X* x, const std::int32_t* row, const std::int32_t* source, std::int64_t tokens,
              std::int64_t k_count, std::int64_t room, std::int64_t pieces) {
  for (std::int64_t t = first_warp(); t < tokens; t += warp_step()) {
    for (std::int64_t begin = lane(); begin < pieces; begin += ahead * warp_threads) {
      typename A::Piece loaded[ahead];
      load_ahead<A>(loaded, x + t * pieces * A::width, begin, pieces);
      for (std::int64_t k = 0; k < k_count; ++k) {
        const std::int64_t r = row[t * k_count + k];
        if (r < 0 || r >= room) {
          continue;
        }
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          if (begin + i * warp_threads < pieces) {
            A::store(rows + r * pieces * A::width, begin + i * warp_threads, loaded[i]);
          }
        }
      }
    }
  }
  clear_empty_rows<A>(rows, source, room, pieces);
}

template <class X>
__global__ void __launch_bounds__(pack_block_threads)
    pack_narrow(X* rows, const X* x, const std::int32_t* source, std::int64_t k_count, std::int64_t room,
                std::int64_t d) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * pack_block_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * pack_block_threads + threadIdx.x; i < room * d;
       i += step) {
    const std::int32_t from = source[i / d];
    rows[i] = from < 0 ? X{} : x[from / k_count * d + i % d];
  }
}

// y [T, d] (+)= sum over k, in order, of weight[t, k] * rows[row[t, k]]; weight null: 1.
template <class A, class X>
__global__ void __launch_bounds__(pack_block_threads)
    gather_sum(X* y, const X* rows, const std::int32_t* row, const float* weight, std::int64_t tokens,
               std::int64_t k_count, std::int64_t pieces, bool accumulate) {
  for (std::int64_t t = first_warp(); t < tokens; t += warp_step()) {
    for (std::int64_t piece = lane(); piece < pieces; piece += warp_threads) {
      float sum[A::width] = {};
      for (std::int64_t k = 0; k < k_count; k += ahead) {
        typename A::Piece loaded[ahead];
        float factor[ahead];
        bool kept[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          const std::int64_t choice = t * k_count + k + i;
          const std::int64_t r = k + i < k_count ? row[choice] : -1;
          kept[i] = r >= 0;
          if (kept[i]) {
            factor[i] = weight == nullptr ? 1.0f : weight[choice];
            loaded[i] = A::load(rows + r * pieces * A::width, piece);
          }
        }
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          if (kept[i]) {
#pragma unroll
            for (int j = 0; j < A::width; ++j) {
              sum[j] += factor[i] * to_float(loaded[i].v[j]);
            }
          }
        }
      }
      X* const to = y + t * pieces * A::width;
      typename A::Piece result;
      if (accumulate) {
        result = A::load(to, piece);
      }
#pragma unroll
      for (int j = 0; j < A::width; ++j) {
        result.v[j] = from_float<X>(accumulate ? to_float(result.v[j]) + sum[j] : sum[j]);
      }
      A::store(to, piece, result);
    }
  }
}

template <class X>
__global__ void __launch_bounds__(pack_block_threads)
    gather_sum_narrow(X* y, const X* rows, const std::int32_t* row, const float* weight, std::int64_t tokens,
                      std::int64_t k_count, std::int64_t d, bool accumulate) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * pack_block_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * pack_block_threads + threadIdx.x; i < tokens * d;
       i += step) {
    const std::int64_t t = i / d, column = i - t * d;
    float sum = 0;
    for (std::int64_t k = 0; k < k_count; ++k) {
      const std::int64_t r = row[t * k_count + k];
      if (r >= 0) {
        sum += (weight == nullptr ? 1.0f : weight[t * k_count + k]) * to_float(rows[r * d + column]);
      }
    }
    y[i] = from_float<X>(accumulate ? to_float(y[i]) + sum : sum);
  }
}

// drows [R, d] and dweight [T, K] as Stream::combine_backward.
template <class A, class X>
__global__ void __launch_bounds__(pack_block_threads)
    combine_backward_rows(X* drows, float* dweight, const X* dy, const X* rows, const std::int32_t* row,
                          const std::int32_t* source, const float* weight, std::int64_t tokens, std::int64_t k_count,
                          std::int64_t room, std::int64_t pieces) {
  for (std::int64_t t = first_warp(); t < tokens; t += warp_step()) {
    // A stretch of the token's row stays in registers while the packed rows of its choices pass.
    for (std::int64_t stretch = 0; stretch < pieces || stretch == 0; stretch += ahead * warp_threads) {
      typename A::Piece g[ahead];
      load_ahead<A>(g, dy + t * pieces * A::width, stretch + lane(), pieces);
      for (std::int64_t choice = t * k_count; choice < (t + 1) * k_count; ++choice) {
        const std::int64_t r = row[choice];
        if (r < 0) {
          if (lane() == 0) {
            dweight[choice] = 0;
          }
          continue;
        }
        const float w = weight[choice];
        typename A::Piece x[ahead];
        load_ahead<A>(x, rows + r * pieces * A::width, stretch + lane(), pieces);
        float dot = 0;
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
          const std::int64_t piece = stretch + i * warp_threads + lane();
          if (piece < pieces) {
            typename A::Piece result;
#pragma unroll
            for (int j = 0; j < A::width; ++j) {
              const float of_g = to_float(g[i].v[j]);
              dot += of_g * to_float(x[i].v[j]);
              result.v[j] = from_float<X>(w * of_g);
            }
            A::store(drows + r * pieces * A::width, piece, result);
          }
        }
        dot = warp_sum(dot);
        if (lane() == 0) {
          dweight[choice] = stretch == 0 ? dot : dweight[choice] + dot;
        }
      }
    }
  }
  clear_empty_rows<A>(drows, source, room, pieces);
}

// Calls fn(Access) with the widest access that all of these rows of `columns` elements of type X allow.
template <class X, class F>
void with_access(std::initializer_list<const X*> rows, std::int64_t columns, F&& fn) {
  bool vectors = true;
  for (const X* const p : rows) {
    vectors = vectors && vectorizable(p, columns);
  }
  if (vectors) {
    fn(Access<X, vector_elements<X>>{});
  } else {
    fn(Access<X, 1>{});
  }
}

Grid warps_for(std::int64_t rows) {
  return Grid{blocks_for(rows, pack_block_warps, pack_most_blocks), pack_block_threads};
}
Grid threads_for(std::int64_t elements) {
  return Grid{blocks_for(elements, pack_block_threads, pack_most_blocks), pack_block_threads};
}

void launch_gather_sum(const StreamRef& stream, const Tensor& y, const Tensor& rows, const Tensor& row,
                       const float* weight, bool accumulate) {
  const std::int64_t tokens = y.dim(0), k_count = row.dim(1), d = y.dim(1);
  with_float_type(y.dtype(), [&](auto type) {
    using X = decltype(type);
    if (d < narrow) {
      launch(gather_sum_narrow<X>, threads_for(tokens * d), stream, y.as<X>(), rows.as<X>(), row.as<std::int32_t>(),
             weight, tokens, k_count, d, accumulate);
      return;
    }
    with_access<X>({y.as<X>(), rows.as<X>()}, d, [&](auto access) {
      using A = decltype(access);
      launch(gather_sum<A, X>, warps_for(tokens), stream, y.as<X>(), rows.as<X>(), row.as<std::int32_t>(), weight,
             tokens, k_count, d / A::width, accumulate);
    });
  });
}

}  // namespace

void CudaStream::pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) {
  check_pack(rows, x, row, source);
  const std::int64_t tokens = x.dim(0), k_count = row.dim(1), room = rows.dim(0), d = x.dim(1);
  with_float_type(x.dtype(), [&](auto type) {
    using X = decltype(type);
    if (d < narrow) {
      launch(pack_narrow<X>, threads_for(room * d), stream_, rows.as<X>(), x.as<X>(), source.as<std::int32_t>(),
             k_count, room, d);
      return;
    }
    with_access<X>({rows.as<X>(), x.as<X>()}, d, [&](auto access) {
      using A = decltype(access);
      launch(pack_rows<A, X>, warps_for(std::max(tokens, room / warp_threads + 1)), stream_, rows.as<X>(), x.as<X>(),
             row.as<std::int32_t>(), source.as<std::int32_t>(), tokens, k_count, room, d / A::width);
    });
  });
}

void CudaStream::pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) {
  check_pack_backward(dx, drows, row);
  launch_gather_sum(stream_, dx, drows, row, nullptr, accumulate);
}

void CudaStream::combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight,
                         bool accumulate) {
  check_combine(y, rows, row, weight);
  launch_gather_sum(stream_, y, rows, row, weight.as<float>(), accumulate);
}

void CudaStream::combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                                  const Tensor& row, const Tensor& source, const Tensor& weight) {
  check_combine_backward(drows, dweight, dy, rows, row, source, weight);
  const std::int64_t tokens = dy.dim(0), k_count = row.dim(1), room = rows.dim(0), d = dy.dim(1);
  with_float_type(dy.dtype(), [&](auto type) {
    using X = decltype(type);
    with_access<X>({drows.as<X>(), dy.as<X>(), rows.as<X>()}, d, [&](auto access) {
      using A = decltype(access);
      launch(combine_backward_rows<A, X>, warps_for(std::max(tokens, room / warp_threads + 1)), stream_, drows.as<X>(),
             dweight.as<float>(), dy.as<X>(), rows.as<X>(), row.as<std::int32_t>(), source.as<std::int32_t>(),
             weight.as<float>(), tokens, k_count, room, d / A::width);
    });
  });
}

}  // namespace orthant::cuda
