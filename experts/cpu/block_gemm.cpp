#include "experts/cpu/block_gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "experts/cpu/pack_panels.h"

namespace orthant {
namespace {

using namespace panels;

constexpr std::int64_t depth_items = 256;  // of k in one pass: a panel of B stays in the first-level cache
constexpr std::int64_t panel_rows = 132;   // rows of A in one pass: with the panels of B they stay in the second level
template <class T>
constexpr std::int64_t depth = depth_items* Items<T>::steps;
static_assert(panel_rows % tile_rows == 0 && block_rows % panel_rows == 0 && block_columns % tile_columns == 0);

// The panel that comes next, asked for from memory a few lines at a time while the products of the present one run:
// the weights of many experts are in no cache, and with few rows waiting for them takes a fifth of the time.
class Ahead {
 public:
  Ahead() = default;
  // The first `width` rows (or columns) of x and k_count steps from k_begin on, in `parts` calls of fetch().
  template <class T>
  Ahead(const Operand<T>& x, std::int64_t width, std::int64_t k_begin, std::int64_t k_count, std::int64_t parts)
      : from_(reinterpret_cast<const char*>(x.data + (x.k_contiguous ? k_begin : k_begin * x.stride))),
        stride_(x.stride * static_cast<std::int64_t>(sizeof(T))),
        rows_(x.k_contiguous ? width : k_count),
        bytes_((x.k_contiguous ? k_count : width) * static_cast<std::int64_t>(sizeof(T))) {
    lines_a_part_ = (rows_ * ((bytes_ + line - 1) / line) + parts - 1) / parts;
  }

  void fetch() {
    for (std::int64_t i = 0; i < lines_a_part_ && rows_ > 0; ++i) {
      __builtin_prefetch(from_ + at_, 0, 2);
      at_ += line;
      if (at_ >= bytes_) {
        at_ = 0;
        from_ += stride_;
        --rows_;
      }
    }
  }

 private:
  static constexpr std::int64_t line = 64;
  const char* from_ = nullptr;
  std::int64_t stride_ = 0, rows_ = 0, bytes_ = 0, at_ = 0, lines_a_part_ = 0;
};

// A register tile: tile[i][j] = sum over items q of a[q][i] * b[q][j], stored to or added to c. With `fill` the panel b
// is filled from the source on the way: for the first tile that uses a panel that costs next to nothing. Everything in
// it is inlined by force: else the tile goes through memory at every step on AVX-512.
// `rows` of the tile are computed; the panel has all.
template <bool fill, std::int64_t rows, class T>
void tile_product(const float* a, float* b, std::int64_t k_count, float* c, std::int64_t ldc, bool accumulate,
                  [[maybe_unused]] const Operand<T>& source) {
  constexpr std::int64_t steps = Items<T>::steps;
  static constexpr T zeros[tile_columns] = {};  // the step that an odd last one is paired with
  Vector sum[2 * rows];
  const auto each = [&]<std::size_t... i>(std::index_sequence<i...>, auto&& fn) __attribute__((always_inline)) {
    (fn(std::integral_constant<std::size_t, i>{}), ...);
  };
  constexpr auto tile = std::make_index_sequence<static_cast<std::size_t>(rows)>{};
  each(
      tile, [&](auto i) __attribute__((always_inline)) { sum[2 * i] = sum[2 * i + 1] = Vector{}; });
  for (std::int64_t q = 0; q < items_of<T>(k_count); ++q) {
    Vector b0, b1;
    if constexpr (fill) {
      const T* const first = source.data + q * steps * source.stride;
      Items<T>::neighbours(b0, b1, first, (q + 1) * steps > k_count ? zeros : first + source.stride);
      store(b + q * tile_columns, b0);
      store(b + q * tile_columns + lanes, b1);
    } else {
      load(b0, b + q * tile_columns);
      load(b1, b + q * tile_columns + lanes);
    }
    const float* const a_q = a + q * tile_rows;
    each(
        tile, [&](auto i) __attribute__((always_inline)) {
          Items<T>::multiply_add(sum[2 * i], a_q[i], b0);
          Items<T>::multiply_add(sum[2 * i + 1], a_q[i], b1);
        });
  }
  each(
      tile, [&](auto i) __attribute__((always_inline)) {
        float* const row = c + static_cast<std::int64_t>(i) * ldc;
        if (accumulate) {
          Vector c0, c1;
          load(c0, row);
          load(c1, row + lanes);
          sum[2 * i] += c0;
          sum[2 * i + 1] += c1;
        }
        store(row, sum[2 * i]);
        store(row + lanes, sum[2 * i + 1]);
      });
}

// C[rows, vectors * lanes] (+)= A B of so few rows that B is worth reading once and nothing is worth packing. The sums
// are those of tile_product: an element takes the steps of k in order.
template <int rows, int vectors, class T>
void few_rows_product(const Operand<T>& a, const Operand<T>& b, std::int64_t k_begin, std::int64_t k_count, float* c,
                      std::int64_t ldc, bool accumulate) {
  Vector sum[rows][vectors];
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < vectors; ++j) {
      sum[r][j] = Vector{};
    }
  }
  constexpr std::int64_t steps = Items<T>::steps;
  static constexpr T zeros[vectors * lanes] = {};  // the step that an odd last one is paired with
  for (std::int64_t k = 0; k < k_count; k += steps) {
    const T* const first = b.data + (k_begin + k) * b.stride;
    const T* const second = k + steps > k_count ? zeros : first + b.stride;
    Vector columns[vectors];
    for (int j = 0; j < vectors; j += 2) {
      Items<T>::neighbours(columns[j], columns[j + 1], first + j * lanes, second + j * lanes);
    }
    for (std::int64_t s = 0; s < steps; ++s) {
      for (std::int64_t at = 0; at < vectors * lanes; at += 64 / static_cast<std::int64_t>(sizeof(T))) {
        __builtin_prefetch(first + (8 + s) * b.stride + at);
      }
    }
    for (int r = 0; r < rows; ++r) {
      const float factor = Items<T>::item(a.data + r * a.stride + k_begin + k, 1, k_count - k);
      for (int j = 0; j < vectors; ++j) {
        Items<T>::multiply_add(sum[r][j], factor, columns[j]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < vectors; ++j) {
      float* const to = c + r * ldc + j * lanes;
      if (accumulate) {
        Vector before;
        load(before, to);
        sum[r][j] += before;
      }
      store(to, sum[r][j]);
    }
  }
}

// The same for `rows` known when it runs, 1 to most_few_rows, and as many columns as registers hold sums of: memory is
// read fastest in long pieces.
constexpr std::int64_t most_few_rows = 6;
constexpr std::int64_t few_rows_columns(std::int64_t rows) {
  return (rows <= 2 ? 8 : 4) * lanes;
}
template <class T>
void few_rows(std::int64_t rows, const Operand<T>& a, const Operand<T>& b, std::int64_t k_begin, std::int64_t k_count,
              float* c, std::int64_t ldc, bool accumulate) {
  switch (rows) {
    case 1: return few_rows_product<1, 8>(a, b, k_begin, k_count, c, ldc, accumulate);
    case 2: return few_rows_product<2, 8>(a, b, k_begin, k_count, c, ldc, accumulate);
    case 3: return few_rows_product<3, 4>(a, b, k_begin, k_count, c, ldc, accumulate);
    case 4: return few_rows_product<4, 4>(a, b, k_begin, k_count, c, ldc, accumulate);
    case 5: return few_rows_product<5, 4>(a, b, k_begin, k_count, c, ldc, accumulate);
    default: return few_rows_product<6, 4>(a, b, k_begin, k_count, c, ldc, accumulate);
  }
}

// One panel of B and the products with it.
template <class T>
struct Columns {
  float* panel;          // of B, packed or about to be
  std::int64_t k_count;  // its steps
  std::int64_t count;    // its columns
  Operand<T> source;     // what the panel is yet to be filled from (k not contiguous, no column missing), or null
  Ahead ahead;           // the next panel, if it is yet to be packed

  // The first `rows` of a tile, to whole thirds: what an expert's rows leave over is often far from a tile.
  static constexpr std::int64_t third = tile_rows / 3;
  void some_rows(std::int64_t rows, const float* a, float* c, std::int64_t ldc, bool add) {
    switch ((rows + third - 1) / third) {
      case 1: return tile_product<false, third>(a, panel, k_count, c, ldc, add, source);
      case 2: return tile_product<false, 2 * third>(a, panel, k_count, c, ldc, add, source);
      default: return tile_product<false, tile_rows>(a, panel, k_count, c, ldc, add, source);
    }
  }

  // c[rows, count] (+)= the packed rows of A times the panel.
  void product(const float* a, std::int64_t rows, float* c, std::int64_t ldc, bool add) {
    for (std::int64_t i = 0; i < rows; i += tile_rows) {
      const float* const a_panel = a + i * items_of<T>(k_count);
      float* const to = c + i * ldc;
      const std::int64_t tile_m = std::min(tile_rows, rows - i);
      ahead.fetch();
      for (std::int64_t r = 0; r < tile_m; ++r) {
        __builtin_prefetch(to + r * ldc, 1);
      }
      if (i == 0 && source.data != nullptr) {
        tile_product<true, tile_rows>(a_panel, panel, k_count, to, ldc, add, source);
      } else if (tile_m % third == 0 && count == tile_columns) {
        some_rows(tile_m, a_panel, to, ldc, add);
      } else {
        float edge[tile_rows * tile_columns];
        some_rows(tile_m, a_panel, edge, tile_columns, false);
        for (std::int64_t r = 0; r < tile_m; ++r) {
          for (std::int64_t s = 0; s < count; ++s) {
            to[r * ldc + s] = edge[r * tile_columns + s] + (add ? to[r * ldc + s] : 0.0f);
          }
        }
      }
    }
  }
};

}  // namespace

BlockGemm::BlockGemm() {
  // Panels start on cache lines: every size is a multiple of 16 floats.
  constexpr std::size_t a_size = static_cast<std::size_t>(panel_rows * depth_items) + slack;
  constexpr std::size_t b_size = static_cast<std::size_t>(block_columns * depth_items) + slack;
  constexpr std::size_t c_size = static_cast<std::size_t>(block_rows * block_columns);
  static_assert(a_size % 16 == 0 && b_size % 16 == 0 && c_size % 16 == 0);
  memory_.reset(static_cast<float*>(std::aligned_alloc(64, (a_size + b_size + c_size) * sizeof(float))));
  if (memory_ == nullptr) {
    throw std::bad_alloc();
  }
  a_ = memory_.get();
  b_ = a_ + a_size;
  c_ = b_ + b_size;
}

template <class T>
void BlockGemm::product(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, float* c,
                        std::int64_t ldc, bool accumulate) {
  if (k == 0 && !accumulate) {
    for (std::int64_t i = 0; i < m; ++i) {
      std::fill_n(c + i * ldc, n, 0.0f);
    }
  }
  const std::int64_t few_columns = few_rows_columns(m);
  if (m <= most_few_rows && a.k_contiguous && !b.k_contiguous && n >= few_columns) {
    const std::int64_t straight = n / few_columns * few_columns;
    for (std::int64_t j = 0; j < straight; j += few_columns) {
      for (std::int64_t k0 = 0; k0 < k; k0 += depth<T>) {
        few_rows(m, a, b.from(j), k0, std::min(depth<T>, k - k0), c + j, ldc, accumulate || k0 > 0);
      }
    }
    if (straight < n) {
      product(m, n - straight, k, a, b.from(straight), c + straight, ldc, accumulate);
    }
    return;
  }
  // So few rows wait for memory whatever is done: B is read in its order, the fastest way.
  const bool whole = m <= tile_rows && !b.k_contiguous;
  for (std::int64_t k0 = 0; k0 < k; k0 += depth<T>) {
    const std::int64_t k_count = std::min(depth<T>, k - k0), items = items_of<T>(k_count);
    const bool add = accumulate || k0 > 0;
    if (whole) {
      pack<tile_columns>(b_, b, n, k0, k_count);
    }
    for (std::int64_t i0 = 0; i0 < m; i0 += panel_rows) {
      const std::int64_t rows = std::min(panel_rows, m - i0), tiles = (rows + tile_rows - 1) / tile_rows;
      pack<tile_rows>(a_, a.from(i0), rows, k0, k_count);
      for (std::int64_t j = 0; j < n; j += tile_columns) {
        Columns<T> columns{b_ + j * items, k_count, std::min(tile_columns, n - j), {}, {}};
        if (i0 == 0 && !whole) {
          if (b.k_contiguous || columns.count < tile_columns || rows < tile_rows) {
            pack<tile_columns>(b_ + j * items, b.from(j), columns.count, k0, k_count);
          } else {
            columns.source = {b.data + k0 * b.stride + j, b.stride, false};
          }
          if (const std::int64_t next = j + tile_columns; next < n) {
            columns.ahead = Ahead(b.from(next), std::min(tile_columns, n - next), k0, k_count, tiles);
          } else if (const std::int64_t next_k = k0 + depth<T>; next_k < k) {
            columns.ahead = Ahead(b, std::min(tile_columns, n), next_k, std::min(depth<T>, k - next_k), tiles);
          }
        }
        columns.product(a_, rows, c + i0 * ldc + j, ldc, add);
      }
    }
  }
}

template <class T, class C>
void BlockGemm::run(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, C* c, std::int64_t ldc,
                    bool accumulate) {
  if constexpr (std::is_same_v<C, float>) {
    product(m, n, k, a, b, c, ldc, accumulate);
  } else {
    product(m, n, k, a, b, c_, block_columns, false);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const float sum = c_[i * block_columns + j];
        c[i * ldc + j] = to_bf16(accumulate ? to_float(c[i * ldc + j]) + sum : sum);
      }
    }
  }
}

template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<float>, Operand<float>, float*,
                             std::int64_t, bool);
template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<float>, Operand<float>, BFloat16*,
                             std::int64_t, bool);
template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<BFloat16>, Operand<BFloat16>, float*,
                             std::int64_t, bool);
template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<BFloat16>, Operand<BFloat16>, BFloat16*,
                             std::int64_t, bool);

}  // namespace orthant
