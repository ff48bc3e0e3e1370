// What becomes of a tile of a product, part by part: stored, activated, or weighed (expert_engine.h).
//
// An epilogue has across(p), the columns of the product as tiles count them; row_of_b(p, column), which row of b[e]
// (nt) is such a column, or -1; and an operator that takes a part of a tile that lies in shared memory.
//
// Part: `rows` x `columns` sums, at(row, piece) being eight of a row, side by side; for_each_piece<n, batch>(load, use)
// calls use(row, piece, load(row, piece)) for each row and each of n pieces of eight, n at most columns / 8, and what
// is loaded for `batch` of them is on its way at once: n neighbouring lanes have a row, and all lanes reach load and
// use together.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/device/cuda/activation_math.h"
#include "experts/cuda/expert_engine.h"
#include "experts/cuda/tile_order.h"

namespace orthant::cuda {

// Where a part lies: its first row among all packed rows, how many rows exist from there on, and its first column.
struct PartPlace {
  std::int64_t row, rows, column;
};

// Part::for_each_piece for `threads` threads, of which this is `thread`.
template <int rows, int pieces, int threads, int batch, class Load, class Use>
__device__ inline void divide_pieces(int thread, Load&& load, Use&& use) {
  constexpr int items = rows * pieces / threads, together = batch < items ? batch : items;
  static_assert(rows * pieces % threads == 0 && items % together == 0);
#pragma unroll 1
  for (int first = 0; first < items; first += together) {
    decltype(load(0, 0)) loaded[together];
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int item = thread + (first + i) * threads;
      loaded[i] = load(item / pieces, item % pieces);
    }
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int item = thread + (first + i) * threads;
      use(item / pieces, item % pieces, loaded[i]);
    }
  }
}

// Of those that load nothing.
struct Nothing {};

__device__ inline void load_eight(float (&to)[8], const float* from) {
  float low[4], high[4];
  load_vector(low, from);
  load_vector(high, from + 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = low[i];
    to[i + 4] = high[i];
  }
}
__device__ inline void load_eight(float (&to)[8], const bf16* from) {
  load_vector(to, from);
}

__device__ inline void store_eight(float* to, const float (&x)[8]) {
  store_vector(to, {x[0], x[1], x[2], x[3]});
  store_vector(to + 4, {x[4], x[5], x[6], x[7]});
}
__device__ inline void store_eight(bf16* to, const float (&x)[8]) {
  store_vector(to, x);
}

// c = or += the part; `rows` and `columns` of it exist.
template <class Part, class Out>
__device__ inline void store_part(const Part& part, Out* c, std::int64_t stride, std::int64_t rows,
                                  std::int64_t columns, bool accumulate) {
  struct Old {
    float v[8];
  };
  const auto there = [&](int row, int piece) { return row < rows && piece * 8 < columns; };
  part.template for_each_piece<Part::columns / 8, 2>(
      [&](int row, int piece) {
        Old old{};
        if (accumulate && there(row, piece)) {
          load_eight(old.v, c + row * stride + piece * 8);
        }
        return old;
      },
      [&](int row, int piece, const Old& old) {
        if (there(row, piece)) {
          float x[8];
          load_eight(x, part.at(row, piece));
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            x[i] += old.v[i];
          }
          store_eight(c + row * stride + piece * 8, x);
        }
      });
}

template <class Out>
struct Plain {
  static __host__ __device__ std::int64_t across(const GroupedProblem& p) { return p.n; }
  static __device__ int row_of_b(const GroupedProblem& p, int column) { return column < p.n ? column : -1; }
  template <class Part>
  __device__ void operator()(const Part& part, const GroupedProblem& p, const PartPlace& at) const {
    store_part(part, static_cast<Out*>(p.c) + at.row * p.n + at.column, p.n, at.rows, p.n - at.column, p.beta != 0);
  }
};

// c = h, and the activation of what was stored. Gated, a tile has 16 gates and the 16 columns above them in turns, so
// that a thread meets both.
template <class Kind>
struct Activate {
  bf16* act;

  static __host__ __device__ std::int64_t f_of(const GroupedProblem& p) { return Kind::gated ? p.n / 2 : p.n; }
  static __host__ __device__ std::int64_t across(const GroupedProblem& p) {
    return Kind::gated ? parts(f_of(p), 16) * 32 : p.n;
  }
  static __device__ int row_of_b(const GroupedProblem& p, int column) {
    const int f = static_cast<int>(f_of(p));
    if constexpr (Kind::gated) {
      const int gate = (column >> 5 << 4) + (column & 15);
      return gate < f ? gate + ((column & 16) == 0 ? 0 : f) : -1;
    } else {
      return column < f ? column : -1;
    }
  }
  template <class Part>
  __device__ void operator()(const Part& part, const GroupedProblem& p, const PartPlace& at) const {
    constexpr int pieces = Part::columns / 8 / (Kind::gated ? 2 : 1);  // of act
    const std::int64_t f = f_of(p), first = Kind::gated ? at.column / 2 : at.column;
    const auto nothing = [](int, int) { return Nothing{}; };
    part.template for_each_piece<pieces, 1>(nothing, [&](int row, int piece, Nothing) {
      const std::int64_t column = first + piece * 8, r = at.row + row;
      if (row >= at.rows || column >= f) {
        return;
      }
      const int gates = Kind::gated ? piece / 2 * 4 + piece % 2 : piece;
      float gate[8], up[8], a[8];
      load_eight(gate, part.at(row, gates));
      load_eight(up, part.at(row, gates + (Kind::gated ? 2 : 0)));
      bf16* const h = static_cast<bf16*>(p.c) + r * p.n + column;
      store_vector(h, gate);
      if constexpr (Kind::gated) {
        store_vector(h + f, up);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        a[i] = Kind::value(to_float(from_float<bf16>(gate[i])), to_float(from_float<bf16>(up[i])));
      }
      store_vector(act + r * f + column, a);
    });
  }
};

template <class Kind>
struct Weigh {
  WeightedBackward out;

  static __host__ __device__ std::int64_t across(const GroupedProblem& p) { return p.n; }
  static __device__ int row_of_b(const GroupedProblem&, int) { return -1; }  // nn has none
  template <class Part>
  __device__ void operator()(const Part& part, const GroupedProblem& p, const PartPlace& at) const {
    constexpr int pieces = Part::columns / 8;
    const std::int64_t f = p.n, n = (Kind::gated ? 2 : 1) * f;
    struct Loaded {
      Vector<bf16> gate, up;
    };
    const auto load = [&](int row, int piece) {
      const std::int64_t column = at.column + piece * 8, r = at.row + row;
      Loaded loaded{};
      if (row < at.rows && column < f) {
        const bf16* const h = static_cast<const bf16*>(out.h) + r * n + column;
        loaded.gate = *reinterpret_cast<const Vector<bf16>*>(h);
        if constexpr (Kind::gated) {
          loaded.up = *reinterpret_cast<const Vector<bf16>*>(h + f);
        }
      }
      return loaded;
    };
    part.template for_each_piece<pieces, 1>(load, [&](int row, int piece, const Loaded& loaded) {
      const std::int64_t column = at.column + piece * 8, r = at.row + row;
      const bool there = row < at.rows && column < f;
      float inner = 0.0f;
      if (there) {
        const std::int32_t choice = out.source[r];
        const float s = choice < 0 ? 0.0f : out.weight[choice];
        float d[8], a[8], dgate[8], dup[8];
        load_eight(d, part.at(row, piece));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const ActivationSlopes slopes = Kind::slopes(to_float(loaded.gate.v[i]), to_float(loaded.up.v[i]));
          inner += d[i] * slopes.value;
          a[i] = s * slopes.value;
          dgate[i] = s * d[i] * slopes.by_gate;
          dup[i] = s * d[i] * slopes.by_up;
        }
        bf16* const dh = static_cast<bf16*>(out.dh) + r * n + column;
        store_vector(static_cast<bf16*>(out.act) + r * f + column, a);
        store_vector(dh, dgate);
        if constexpr (Kind::gated) {
          store_vector(dh + f, dup);
        }
      }
#pragma unroll
      for (int distance = pieces / 2; distance > 0; distance /= 2) {
        inner += __shfl_xor_sync(all_lanes, inner, distance);
      }
      if (there && piece == 0) {
        out.partial[r * parts(f, Part::columns) + at.column / Part::columns] = inner;
      }
    });
  }
};

// The engine that runs its products by Kernels::rows<layout>(stream, p, gather, epilogue), for nt and nn, and by
// Kernels::weights(stream, p, gather_a, gather_b).
template <class Kernels>
constexpr ExpertEngine engine_of(std::int64_t part_columns) {
  constexpr GroupedLayout nt = GroupedLayout::nt, nn = GroupedLayout::nn;
  return {.multiply =
              [](const CudaStream& stream, const GroupedProblem& p, DType out, Gather gather_a, Gather gather_b) {
                const auto rows = [&](auto epilogue) {
                  p.layout == nt ? Kernels::template rows<nt>(stream, p, gather_a, epilogue)
                                 : Kernels::template rows<nn>(stream, p, gather_a, epilogue);
                };
                if (p.layout == GroupedLayout::tn) {
                  Kernels::weights(stream, p, gather_a, gather_b);
                } else if (out == DType::f32) {
                  rows(Plain<float>{});
                } else {
                  rows(Plain<bf16>{});
                }
              },
          .activate =
              [](const CudaStream& stream, const GroupedProblem& p, Gather gather, void* act, Activation kind) {
                with_activation(kind, [&](auto which) {
                  Kernels::template rows<nt>(stream, p, gather, Activate<decltype(which)>{static_cast<bf16*>(act)});
                });
              },
          .weigh =
              [](const CudaStream& stream, const GroupedProblem& p, Gather gather, const WeightedBackward& out,
                 Activation kind) {
                with_activation(kind, [&](auto which) {
                  Kernels::template rows<nn>(stream, p, gather, Weigh<decltype(which)>{out});
                });
              },
          .part_columns = part_columns};
}

}  // namespace orthant::cuda
