// What becomes of a tile of a product that lies in the registers of a warp group: stored, activated, or weighed
// (expert_engine.h). A warp stores strips of 16 rows by itself. Where all 16 rows are the expert's, bf16 goes by
// stmatrix to boxes of 16 x 32 in shared memory and from there by bulk stores, which leave out columns that are not
// there; the last rows of an expert go straight from registers, and so does fp32.
//
// What is stored in bf16 is rounded first: two sums a register, so that what follows has registers to work with.
//
// An epilogue has `columns`, those of c (or of the activation) that a tile counts; width(p), their number; row_of_b(p,
// tile, half), the row of b[e] with which half of a tile of nt begins; maps(p), of what it stores; and an operator.
#pragma once

#include <cstdint>

#include "core/device/cuda/activation_math.h"
#include "experts/cuda/hopper/register_tile.h"

namespace orthant::cuda {

// Straight from registers: `rows` x `columns` of the 16 x 16 are there.
__device__ inline void store_pairs(bf16* to, std::int64_t stride, int rows, int columns, const std::uint32_t (&r)[4]) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (row_of_pair(m) < rows && column_of_pair(m) < columns) {
      store_pair(to + row_of_pair(m) * stride + column_of_pair(m), r[m]);
    }
  }
}

// c = the product.
struct StoreRows {
  static constexpr int columns = wgmma_columns;

  static std::int64_t width(const GroupedProblem& p) { return p.n; }
  static __device__ int row_of_b(const GroupedProblem&, const ClusterTile& tile, int half) {
    return tile.column * columns + half * columns / 2;
  }
  OutputMaps maps(const GroupedProblem& p) const {
    const CUtensorMap c = output_map(p.c, p.n, 1, p.rows);
    return {c, c};
  }
  __device__ void operator()(const WgmmaSums (&sums)[2], const GroupedProblem& p, const OutputMaps& maps,
                             const ClusterTile& tile, Boxes& boxes) const {
    const RoundedTile rounded(sums);
    const int n = static_cast<int>(p.n);
    for_each_strip(tile, [&](int strip, int row, int left) {
#pragma unroll 1
      for (int step = 0; step < tile_steps; ++step) {
        const int column = tile.column * columns + step * step_columns;
        std::uint32_t r[4];
        rounded.take(r, strip, step);
        if (left < strip_rows) {
          store_pairs(static_cast<bf16*>(p.c) + std::int64_t{row} * n + column, n, left, n - column, r);
          continue;
        }
        if (step % 2 == 0) {
          boxes.begin();
        }
        boxes.put(0, step % 2, r);
        if (step % 2 == 1) {
          boxes.end([&] { store_box(maps.wide, boxes.at(0), column - step_columns, 0, row); });
        }
      }
    });
  }
};

// What a step of the two epilogues below has made: 16 x 16 of h or dh (gated: and of its second half), and of act.
template <class Kind>
struct GatedStep {
  std::uint32_t gate[4], up[4], act[4];

  // f: columns of act. column: the step's first. left: rows of the strip that are there.
  __device__ void store(bf16* h, bf16* a, const OutputMaps& maps, Boxes& boxes, int step, int f, int row, int column,
                        int left) const {
    if (left < strip_rows) {
      const int n = (Kind::gated ? 2 : 1) * f;
      bf16* const first = h + std::int64_t{row} * n + column;
      store_pairs(first, n, left, f - column, gate);
      if constexpr (Kind::gated) {
        store_pairs(first + f, n, left, f - column, up);
      }
      store_pairs(a + std::int64_t{row} * f + column, f, left, f - column, act);
      return;
    }
    if (step % 2 == 0) {
      boxes.begin();
    }
    boxes.put(0, step % 2, gate);
    boxes.put(1, step % 2, act);
    if constexpr (Kind::gated) {
      boxes.put(2, step % 2, up);
    }
    if (step % 2 == 1) {
      boxes.end([&] {
        const int x = column - step_columns;
        store_box(maps.wide, boxes.at(0), x, 0, row);
        store_box(maps.narrow, boxes.at(1), x, 0, row);
        if constexpr (Kind::gated) {
          store_box(maps.wide, boxes.at(2), x, 1, row);
        }
      });
    }
  }
};

// c = h and act(h), as h was rounded. Gated, the first half of a tile is gates and the second the columns above them,
// so that a thread has both.
template <class Kind>
struct ActivateRows {
  static constexpr int columns = Kind::gated ? wgmma_columns / 2 : wgmma_columns;
  bf16* act;

  static std::int64_t width(const GroupedProblem& p) { return Kind::gated ? p.n / 2 : p.n; }
  static __device__ int row_of_b(const GroupedProblem& p, const ClusterTile& tile, int half) {
    const int first = tile.column * columns;
    return Kind::gated ? first + half * static_cast<int>(p.n / 2) : first + half * columns / 2;
  }
  OutputMaps maps(const GroupedProblem& p) const {
    return {output_map(p.c, width(p), Kind::gated ? 2 : 1, p.rows), output_map(act, width(p), 1, p.rows)};
  }
  __device__ void operator()(const WgmmaSums (&sums)[2], const GroupedProblem& p, const OutputMaps& maps,
                             const ClusterTile& tile, Boxes& boxes) const {
    const RoundedTile rounded(sums);
    const int f = static_cast<int>(Kind::gated ? p.n / 2 : p.n);
    for_each_strip(tile, [&](int strip, int row, int left) {
#pragma unroll 1
      for (int step = 0; step < columns / step_columns; ++step) {
        GatedStep<Kind> made{};
        rounded.take(made.gate, strip, step);
        if constexpr (Kind::gated) {
          rounded.take(made.up, strip, step + columns / step_columns);
        }
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 g = unpack_pair(made.gate[m]), u = unpack_pair(made.up[m]);
          made.act[m] = pack_pair(Kind::value(g.x, u.x), Kind::value(g.y, u.y));
        }
        made.store(static_cast<bf16*>(p.c), act, maps, boxes, step, f, row, tile.column * columns + step * step_columns,
                   left);
      }
    });
  }
};

// da = the product, as it is rounded: dh, the weighted activation, and each row's <da, act(h)>, a part of it for each
// tile.
template <class Kind>
struct WeighRows {
  static constexpr int columns = wgmma_columns;
  WeightedBackward out;

  static std::int64_t width(const GroupedProblem& p) { return p.n; }
  static __device__ int row_of_b(const GroupedProblem&, const ClusterTile&, int) { return 0; }  // nn has none
  OutputMaps maps(const GroupedProblem& p) const {
    return {output_map(out.dh, p.n, Kind::gated ? 2 : 1, p.rows), output_map(out.act, p.n, 1, p.rows)};
  }
  __device__ void operator()(const WgmmaSums (&sums)[2], const GroupedProblem& p, const OutputMaps& maps,
                             const ClusterTile& tile, Boxes& boxes) const {
    const RoundedTile rounded(sums);
    const int f = static_cast<int>(p.n), n = (Kind::gated ? 2 : 1) * f;
    for_each_strip(tile, [&](int strip, int row, int left) {
      float weight[2], inner[2] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::int32_t choice = row_of_pair(h) < left ? out.source[row + row_of_pair(h)] : -1;
        weight[h] = choice < 0 ? 0.0f : out.weight[choice];
      }
#pragma unroll 1
      for (int step = 0; step < tile_steps; ++step) {
        const int column = tile.column * columns + step * step_columns;
        const bf16* const h = static_cast<const bf16*>(out.h) + std::int64_t{row} * n + column;
        GatedStep<Kind> made{};
        load_pairs(made.gate, h, n, left, f - column);
        if constexpr (Kind::gated) {
          load_pairs(made.up, h + f, n, left, f - column);
        }
        std::uint32_t da[4];
        rounded.take(da, strip, step);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 d = unpack_pair(da[m]), g = unpack_pair(made.gate[m]), u = unpack_pair(made.up[m]);
          const ActivationSlopes low = Kind::slopes(g.x, u.x), high = Kind::slopes(g.y, u.y);
          const float s = weight[m % 2];
          inner[m % 2] += d.x * low.value + d.y * high.value;
          made.act[m] = pack_pair(s * low.value, s * high.value);
          made.gate[m] = pack_pair(s * d.x * low.by_gate, s * d.y * high.by_gate);
          made.up[m] = pack_pair(s * d.x * low.by_up, s * d.y * high.by_up);
        }
        made.store(static_cast<bf16*>(out.dh), static_cast<bf16*>(out.act), maps, boxes, step, f, row, column, left);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        inner[h] += __shfl_xor_sync(all_lanes, inner[h], 1);
        inner[h] += __shfl_xor_sync(all_lanes, inner[h], 2);
        if (lane() % 4 == 0 && row_of_pair(h) < left) {
          out.partial[std::int64_t{row + row_of_pair(h)} * parts(f, columns) + tile.column] = inner[h];
        }
      }
    });
  }

 private:
  static __device__ void load_pairs(std::uint32_t (&r)[4], const bf16* from, std::int64_t stride, int rows,
                                    int columns_left) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      r[m] = row_of_pair(m) < rows && column_of_pair(m) < columns_left
                 ? load_pair(from + row_of_pair(m) * stride + column_of_pair(m))
                 : 0;
    }
  }
};

// Straight from registers, a strip at a time: c = or += its sums, of which `rows` x `columns` (a multiple of 8) are
// there. transposed: c holds columns of the tile one after another. stride: of c.
template <bool transposed, class Out>
__device__ inline void store_sums(Out* c, std::int64_t stride, int rows, int columns, const WgmmaSums& sums,
                                  bool accumulate) {
  const std::int64_t next_row = transposed ? 1 : stride, next_column = transposed ? stride : 1;
  Out* at = c + lane() / 4 * next_row + lane() % 4 * 2 * next_column;
  const bool there[2] = {lane() / 4 < rows, lane() / 4 + 8 < rows};
  constexpr int together = 3;  // groups of eight columns, whose old values are on their way at once
#pragma unroll
  for (int first = 0; first < held_sums / 4; first += together) {
    float old[together][2][2];
    Out* from = at;
#pragma unroll
    for (int j = 0; j < together; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        old[j][i / 2][i % 2] = accumulate && there[i / 2] && (first + j) * 8 < columns
                                   ? to_float(from[i / 2 * 8 * next_row + i % 2 * next_column])
                                   : 0.0f;
      }
      from += 8 * next_column;
    }
#pragma unroll
    for (int j = 0; j < together; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (there[h] && (first + j) * 8 < columns) {
          Out* const to = at + h * 8 * next_row;
          const float low = old[j][h][0] + sums[4 * (first + j) + 2 * h];
          const float high = old[j][h][1] + sums[4 * (first + j) + 2 * h + 1];
          if constexpr (transposed) {
            to[0] = from_float<Out>(low);
            to[next_column] = from_float<Out>(high);
          } else {
            store_vector<2, Out>(to, {low, high});
          }
        }
      }
      at += 8 * next_column;
    }
  }
}

// c = the product, in fp32; or in any type c += it.
template <class Out>
struct AddRows {
  static constexpr int columns = wgmma_columns;

  static std::int64_t width(const GroupedProblem& p) { return p.n; }
  static __device__ int row_of_b(const GroupedProblem& p, const ClusterTile& tile, int half) {
    return StoreRows::row_of_b(p, tile, half);
  }
  OutputMaps maps(const GroupedProblem&) const { return {}; }
  __device__ void operator()(const WgmmaSums (&sums)[2], const GroupedProblem& p, const OutputMaps&,
                             const ClusterTile& tile, Boxes&) const {
    const int column = tile.column * columns;
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      const int row = strip * 64 + warp() % 4 * strip_rows;
      store_sums<false>(static_cast<Out*>(p.c) + (tile.first_row() + row) * p.n + column, p.n, tile.rows_left() - row,
                        static_cast<int>(p.n) - column, sums[strip], p.beta != 0);
    }
  }
};

// tn, in fp32: c [E, m, n], or where transposed c [E, n, m].
template <bool transposed>
struct StoreWeights {
  static constexpr int columns = wgmma_columns;

  static std::int64_t width(const GroupedProblem& p) { return p.n; }
  OutputMaps maps(const GroupedProblem&) const { return {}; }
  __device__ void operator()(const WgmmaSums (&sums)[2], const GroupedProblem& p, const OutputMaps&,
                             const ClusterTile& tile, Boxes&) const {
    if (tile.count == 0 && p.beta != 0) {
      return;
    }
    const int column = tile.column * columns;
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      const int row = tile.row + strip * 64 + warp() % 4 * strip_rows;
      float* const c = static_cast<float*>(p.c) + tile.expert * p.m * p.n;
      store_sums<transposed>(c + (transposed ? column * p.m + row : row * p.n + column), transposed ? p.m : p.n,
                             static_cast<int>(p.m) - row, static_cast<int>(p.n) - column, sums[strip], p.beta != 0);
    }
  }
};

}  // namespace orthant::cuda
