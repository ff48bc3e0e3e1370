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

constexpr std::int64_t depth = 256;       // steps of k in one pass: a panel of B stays in the first-level cache
constexpr std::int64_t panel_rows = 132;  // rows of A in one pass: with the panels of B they stay in the second level
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

[[gnu::always_inline]] inline void load_vector(Vector& v, const float* from) {
  load(v, from);
}
[[gnu::always_inline]] inline void load_vector(Vector& v, const BFloat16* from) {
  using Half [[gnu::vector_size(lanes * 2)]] = std::uint16_t;
  using Wide [[gnu::vector_size(lanes * 4)]] = std::uint32_t;
  Half bits;
  std::memcpy(&bits, from, sizeof bits);
  const Wide wide = __builtin_convertvector(bits, Wide) << 16;
  std::memcpy(&v, &wide, sizeof v);
}

// A register tile: tile[i][j] = sum over k of a[k][i] * b[k][j], stored to or added to c. With `fill` the panel b is
// filled from the source on the way: for the first tile that uses a panel that costs next to nothing.
// Everything in it is inlined by force: else the tile goes through memory at every step on AVX-512.
template <bool fill, class T>
void tile_product(const float* a, float* b, std::int64_t k_count, float* c, std::int64_t ldc, bool accumulate,
                  [[maybe_unused]] const Operand<T>& source) {
  Vector sum[2 * tile_rows];
  const auto each = [&]<std::size_t... i>(std::index_sequence<i...>, auto&& fn) __attribute__((always_inline)) {
    (fn(std::integral_constant<std::size_t, i>{}), ...);
  };
  constexpr auto tile = std::make_index_sequence<static_cast<std::size_t>(tile_rows)>{};
  each(
      tile, [&](auto i) __attribute__((always_inline)) { sum[2 * i] = sum[2 * i + 1] = Vector{}; });
  for (std::int64_t k = 0; k < k_count; ++k) {
    Vector b0, b1;
    if constexpr (fill) {
      load_vector(b0, source.data + k * source.stride);
      load_vector(b1, source.data + k * source.stride + lanes);
      store(b + k * tile_columns, b0);
      store(b + k * tile_columns + lanes, b1);
    } else {
      load(b0, b + k * tile_columns);
      load(b1, b + k * tile_columns + lanes);
    }
    const float* const a_k = a + k * tile_rows;
    each(
        tile, [&](auto i) __attribute__((always_inline)) {
          sum[2 * i] += a_k[i] * b0;
          sum[2 * i + 1] += a_k[i] * b1;
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
  for (std::int64_t k = k_begin; k < k_begin + k_count; ++k) {
    const T* const from = b.data + k * b.stride;
    Vector columns[vectors];
    for (int j = 0; j < vectors; ++j) {
      load_vector(columns[j], from + j * lanes);
      __builtin_prefetch(from + 8 * b.stride + j * lanes);
    }
    for (int r = 0; r < rows; ++r) {
      const float factor = to_float(a.data[r * a.stride + k]);
      for (int j = 0; j < vectors; ++j) {
        sum[r][j] += factor * columns[j];
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

// The same for `rows` known when it runs, 1 to most_few_rows. Accumulators fill the registers.
constexpr std::int64_t most_few_rows = 6, few_columns = 4 * lanes;
template <class T>
void few_rows(std::int64_t rows, const Operand<T>& a, const Operand<T>& b, std::int64_t k_begin, std::int64_t k_count,
              float* c, std::int64_t ldc, bool accumulate) {
  switch (rows) {
    case 1: return few_rows_product<1, 4>(a, b, k_begin, k_count, c, ldc, accumulate);
    case 2: return few_rows_product<2, 4>(a, b, k_begin, k_count, c, ldc, accumulate);
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

  // c[rows, count] (+)= the packed rows of A times the panel.
  void product(const float* a, std::int64_t rows, float* c, std::int64_t ldc, bool add) {
    for (std::int64_t i = 0; i < rows; i += tile_rows) {
      const float* const a_panel = a + i * k_count;
      float* const to = c + i * ldc;
      const std::int64_t tile_m = std::min(tile_rows, rows - i);
      ahead.fetch();
      for (std::int64_t r = 0; r < tile_m; ++r) {
        __builtin_prefetch(to + r * ldc, 1);
      }
      if (i == 0 && source.data != nullptr) {
        tile_product<true>(a_panel, panel, k_count, to, ldc, add, source);
      } else if (tile_m == tile_rows && count == tile_columns) {
        tile_product<false>(a_panel, panel, k_count, to, ldc, add, source);
      } else {
        float edge[tile_rows * tile_columns];
        tile_product<false>(a_panel, panel, k_count, edge, tile_columns, false, source);
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
  constexpr std::size_t a_size = static_cast<std::size_t>(panel_rows * depth) + slack;
  constexpr std::size_t b_size = static_cast<std::size_t>(block_columns * depth) + slack;
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
  if (m <= most_few_rows && a.k_contiguous && !b.k_contiguous && n >= few_columns) {
    const std::int64_t straight = n / few_columns * few_columns;
    for (std::int64_t j = 0; j < straight; j += few_columns) {
      for (std::int64_t k0 = 0; k0 < k; k0 += depth) {
        few_rows(m, a, b.from(j), k0, std::min(depth, k - k0), c + j, ldc, accumulate || k0 > 0);
      }
    }
    if (straight < n) {
      product(m, n - straight, k, a, b.from(straight), c + straight, ldc, accumulate);
    }
    return;
  }
  // So few rows wait for memory whatever is done: B is read in its order, the fastest way.
  const bool whole = m <= tile_rows && !b.k_contiguous;
  for (std::int64_t k0 = 0; k0 < k; k0 += depth) {
    const std::int64_t k_count = std::min(depth, k - k0);
    const bool add = accumulate || k0 > 0;
    if (whole) {
      pack<tile_columns>(b_, b, n, k0, k_count);
    }
    for (std::int64_t i0 = 0; i0 < m; i0 += panel_rows) {
      const std::int64_t rows = std::min(panel_rows, m - i0), tiles = (rows + tile_rows - 1) / tile_rows;
      pack<tile_rows>(a_, a.from(i0), rows, k0, k_count);
      for (std::int64_t j = 0; j < n; j += tile_columns) {
        Columns<T> columns{b_ + j * k_count, k_count, std::min(tile_columns, n - j), {}, {}};
        if (i0 == 0 && !whole) {
          if (b.k_contiguous || columns.count < tile_columns || rows < tile_rows) {
            pack<tile_columns>(b_ + j * k_count, b.from(j), columns.count, k0, k_count);
          } else {
            columns.source = {b.data + k0 * b.stride + j, b.stride, false};
          }
          if (const std::int64_t next = j + tile_columns; next < n) {
            columns.ahead = Ahead(b.from(next), std::min(tile_columns, n - next), k0, k_count, tiles);
          } else if (const std::int64_t next_k = k0 + depth; next_k < k) {
            columns.ahead = Ahead(b, std::min(tile_columns, n), next_k, std::min(depth, k - next_k), tiles);
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
