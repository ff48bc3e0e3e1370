#include "experts/cpu/block_gemm.h"

#include <algorithm>
#include <cstring>
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
// Items of a register tile between two calls of Ahead::fetch(): as measured.
template <class T>
constexpr std::int64_t fetch_items = Items<T>::steps == 1 ? 1 : 16;
static_assert(panel_rows % tile_rows == 0 && block_rows % panel_rows == 0 && block_columns % tile_columns == 0);

// Lines of memory asked for a few at a time. Many at once would fill the queue that the products' own loads pass
// through.
class Lines {
 public:
  Lines() = default;
  // The first `width` rows (or columns) of x and k_count steps from k_begin on, in `parts` calls of fetch().
  template <class T>
  Lines(const Operand<T>& x, std::int64_t width, std::int64_t k_begin, std::int64_t k_count, std::int64_t parts)
      : from_(reinterpret_cast<const char*>(x.data + (x.k_contiguous ? k_begin : k_begin * x.stride))),
        stride_(x.stride * static_cast<std::int64_t>(sizeof(T))),
        rows_(x.k_contiguous ? width : k_count),
        bytes_((x.k_contiguous ? k_count : width) * static_cast<std::int64_t>(sizeof(T))) {
    lines_a_part_ = (rows_ * ((bytes_ + line - 1) / line) + parts - 1) / parts;
  }

  // False if all have been asked for.
  [[gnu::always_inline]] bool fetch() {
    if (rows_ <= 0) {
      return false;
    }
    for (std::int64_t i = 0; i < lines_a_part_ && rows_ > 0; ++i) {
      __builtin_prefetch(from_ + at_, 0, 2);
      at_ += line;
      if (at_ >= bytes_) {
        at_ = 0;
        from_ += stride_;
        --rows_;
      }
    }
    return true;
  }

 private:
  static constexpr std::int64_t line = 64;
  const char* from_ = nullptr;
  std::int64_t stride_ = 0, rows_ = 0, bytes_ = 0, at_ = 0, lines_a_part_ = 0;
};

// What the panels that come next are packed from, asked for while the products of the present ones run: the weights of
// many experts and the rows of all tokens are in no cache, and with few rows waiting for them takes a fifth of the
// time.
struct Ahead {
  Lines b, a;

  [[gnu::always_inline]] void fetch() {
    if (!b.fetch()) {
      a.fetch();
    }
  }
};

// A register tile: tile[i][j] = sum over items q of a[q][i] * b[q][j], stored to or added to c. Everything in it is
// inlined by force: else the tile goes through memory at every step on AVX-512.
// `rows` of the tile are computed; the panel has all.
template <std::int64_t rows, class T, class C>
void tile_product(const float* a, const float* b, std::int64_t items, C* c, std::int64_t ldc, Store how, Ahead& ahead) {
  Vector sum[2 * rows];
  const auto each = [&]<std::size_t... i>(std::index_sequence<i...>, auto&& fn) __attribute__((always_inline)) {
    (fn(std::integral_constant<std::size_t, i>{}), ...);
  };
  constexpr auto tile = std::make_index_sequence<static_cast<std::size_t>(rows)>{};
  each(
      tile, [&](auto i) __attribute__((always_inline)) { sum[2 * i] = sum[2 * i + 1] = Vector{}; });
  for (std::int64_t q = 0; q < items; ++q) {
    Vector b0, b1;
    load(b0, b + q * tile_columns);
    load(b1, b + q * tile_columns + lanes);
    const float* const a_q = a + q * tile_rows;
    if (q % fetch_items<T> == 0) {
      ahead.fetch();
    }
    each(
        tile, [&](auto i) __attribute__((always_inline)) {
          Items<T>::multiply_add(sum[2 * i], a_q[i], b0);
          Items<T>::multiply_add(sum[2 * i + 1], a_q[i], b1);
        });
  }
  each(
      tile, [&](auto i) __attribute__((always_inline)) {
        C* const row = c + static_cast<std::int64_t>(i) * ldc;
        if constexpr (std::is_same_v<C, BFloat16>) {
          Items<T>::round(row, sum[2 * i], sum[2 * i + 1]);
        } else if (how == Store::past_caches) {
          store_past_caches(row, sum[2 * i]);
          store_past_caches(row + lanes, sum[2 * i + 1]);
        } else {
          if (how == Store::add) {
            Vector c0, c1;
            load(c0, row);
            load(c1, row + lanes);
            sum[2 * i] += c0;
            sum[2 * i + 1] += c1;
          }
          store(row, sum[2 * i]);
          store(row + lanes, sum[2 * i + 1]);
        }
      });
}

// With more rows packing B pays. Its unpacked steps are paired for bf16 in each tile of rows anew.
template <class T>
constexpr std::int64_t most_few_rows = 72 / Items<T>::steps;
static_assert(most_few_rows<float> <= panel_rows && most_few_rows<float> <= depth_items);

// Some steps of all columns for so few rows that B's memory is what they wait for: B is read once, in its own order but
// for a few rows at a time, and not packed. sum[rows, n] holds sums of earlier steps, or with `fresh` nothing yet; they
// go on as they would in a register, so an element's sum is that of tile_product. n is a multiple of tile_columns.
template <std::int64_t rows, class T>
void few_rows_steps(const float* a, const Operand<T>& b, std::int64_t k, std::int64_t k_count, std::int64_t n,
                    float* sum, bool fresh, Ahead& ahead) {
  constexpr std::int64_t steps = Items<T>::steps;
  static constexpr T zeros[tile_columns] = {};  // the step that an odd last one is paired with
  for (std::int64_t j = 0; j < n; j += tile_columns) {
    Vector now[2 * rows];
    const auto each = [&]<std::size_t... i>(std::index_sequence<i...>, auto&& fn) __attribute__((always_inline)) {
      (fn(std::integral_constant<std::size_t, i>{}), ...);
    };
    constexpr auto all = std::make_index_sequence<static_cast<std::size_t>(rows)>{};
    each(
        all, [&](auto i) __attribute__((always_inline)) {
          now[2 * i] = now[2 * i + 1] = Vector{};
          if (!fresh) {
            load(now[2 * i], sum + static_cast<std::int64_t>(i) * n + j);
            load(now[2 * i + 1], sum + static_cast<std::int64_t>(i) * n + j + lanes);
          }
        });
    for (std::int64_t q = 0; q < items_of<T>(k_count); ++q) {
      const T* const first = b.data + (k + q * steps) * b.stride + j;
      Vector b0, b1;
      Items<T>::neighbours(b0, b1, first, (q + 1) * steps > k_count ? zeros : first + b.stride);
      const float* const a_q = a + q * tile_rows;
      ahead.fetch();
      each(
          all, [&](auto i) __attribute__((always_inline)) {
            Items<T>::multiply_add(now[2 * i], a_q[i], b0);
            Items<T>::multiply_add(now[2 * i + 1], a_q[i], b1);
          });
    }
    each(
        all, [&](auto i) __attribute__((always_inline)) {
          store(sum + static_cast<std::int64_t>(i) * n + j, now[2 * i]);
          store(sum + static_cast<std::int64_t>(i) * n + j + lanes, now[2 * i + 1]);
        });
  }
}

// The same for `rows` known when it runs, 1 to tile_rows.
template <class T>
void few_rows(std::int64_t rows, const float* a, const Operand<T>& b, std::int64_t k, std::int64_t k_count,
              std::int64_t n, float* sum, bool fresh, Ahead& ahead) {
  const auto pick = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (void)((rows == static_cast<std::int64_t>(i) + 1 &&
            (few_rows_steps<static_cast<std::int64_t>(i) + 1>(a, b, k, k_count, n, sum, fresh, ahead), true)) ||
           ...);
  };
  pick(std::make_index_sequence<static_cast<std::size_t>(tile_rows)>{});
}

// The first `rows` of a tile, to whole thirds: what an expert's rows leave over is often far from a tile.
constexpr std::int64_t third = tile_rows / 3;
template <class T, class C>
void some_rows(std::int64_t rows, const float* a, const float* b, std::int64_t items, C* c, std::int64_t ldc, Store how,
               Ahead& ahead) {
  switch ((rows + third - 1) / third) {
    case 1: return tile_product<third, T>(a, b, items, c, ldc, how, ahead);
    case 2: return tile_product<2 * third, T>(a, b, items, c, ldc, how, ahead);
    default: return tile_product<tile_rows, T>(a, b, items, c, ldc, how, ahead);
  }
}

// A tile of which C has rows x columns.
template <class T, class C>
void part_of_tile(std::int64_t rows, std::int64_t columns, const float* a, const float* b, std::int64_t items, C* c,
                  std::int64_t ldc, Store how, Ahead& ahead) {
  if (rows % third == 0 && columns == tile_columns) {
    return some_rows<T>(rows, a, b, items, c, ldc, how, ahead);
  }
  float edge[tile_rows * tile_columns];
  some_rows<T>(rows, a, b, items, edge, tile_columns, Store::set, ahead);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s < columns; ++s) {
      const float sum = edge[r * tile_columns + s];
      if constexpr (std::is_same_v<C, float>) {
        c[r * ldc + s] = how == Store::add ? c[r * ldc + s] + sum : sum;
      } else {
        c[r * ldc + s] = to_bf16(sum);
      }
    }
  }
}

// Panels start on cache lines: every size is a multiple of 16 floats.
constexpr std::size_t a_size = static_cast<std::size_t>(panel_rows * depth_items) + slack;
constexpr std::size_t b_size = static_cast<std::size_t>(block_columns * depth_items) + slack;
constexpr std::size_t c_size = static_cast<std::size_t>(block_rows * block_columns);
static_assert(a_size % 16 == 0 && b_size % 16 == 0 && c_size % 16 == 0);

}  // namespace

std::size_t BlockGemm::bytes() {
  return (a_size + b_size + c_size) * sizeof(float);
}

BlockGemm::BlockGemm(void* memory) : a_(static_cast<float*>(memory)), b_(a_ + a_size), c_(b_ + b_size) {}

template <class T, class C>
void BlockGemm::few_rows_product(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, C* c,
                                 std::int64_t ldc, Store how, const NextBlock<T>& then) {
  constexpr std::int64_t at_once = 32;  // steps: rows of B that the columns are read from in turn
  for (std::int64_t k0 = 0; k0 < k; k0 += depth<T>) {
    const std::int64_t k_count = std::min(depth<T>, k - k0), end = k0 + k_count;
    pack<tile_rows>(a_, a, m, k0, k_count);
    for (std::int64_t s = k0; s < end; s += at_once) {
      const std::int64_t next = s + at_once < k ? s + at_once : 0;
      Ahead ahead;
      const std::int64_t tiles = (m + tile_rows - 1) / tile_rows * (n / tile_columns);
      const std::int64_t parts = tiles * items_of<T>(std::min(at_once, end - s));
      if (next > 0) {
        ahead.b = Lines(b, n, next, std::min(at_once, k - next), parts);
      } else if (then.b.data != nullptr) {
        ahead.b = Lines(then.b, std::min(n, then.n), 0, std::min(at_once, then.k), parts);
      }
      for (std::int64_t i = 0; i < m; i += tile_rows) {
        const float* const rows = a_ + i * items_of<T>(k_count) + items_of<T>(s - k0) * tile_rows;
        few_rows(std::min(tile_rows, m - i), rows, b, s, std::min(at_once, end - s), n, b_ + i * n, s == k0, ahead);
      }
    }
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const float sum = b_[i * n + j];
        C& to = c[i * ldc + j];
        if constexpr (std::is_same_v<C, float>) {
          to = how == Store::add || k0 > 0 ? to + sum : sum;
        } else {
          to = to_bf16(sum);
        }
      }
    }
  }
}

template <class T, class C>
void BlockGemm::product(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, C* c,
                        std::int64_t ldc, Store how, const NextBlock<T>& then) {
  if (k == 0 && how != Store::add) {
    for (std::int64_t i = 0; i < m; ++i) {
      std::fill_n(c + i * ldc, n, C{});
    }
  }
  if (const std::int64_t straight = n / tile_columns * tile_columns;
      m <= most_few_rows<T> && !b.k_contiguous && straight > 0) {
    few_rows_product(m, straight, k, a, b, c, ldc, how, then);
    if (straight < n) {
      product(m, n - straight, k, a, b.from(straight), c + straight, ldc, how, {});
    }
    return;
  }
  // B of which k is not contiguous is read fastest in its own order, all columns at once.
  const bool whole = !b.k_contiguous;
  // Rows of bf16 whose k is contiguous come in time by themselves: as measured.
  const bool ask_for_a = Items<T>::steps == 1 || !a.k_contiguous;
  for (std::int64_t k0 = 0; k0 < k; k0 += depth<T>) {
    const std::int64_t k_count = std::min(depth<T>, k - k0), items = items_of<T>(k_count);
    const std::int64_t fetches = (items + fetch_items<T> - 1) / fetch_items<T>;
    const std::int64_t all_columns = (n + tile_columns - 1) / tile_columns;
    const std::int64_t k1 = k0 + depth<T>;
    const NextBlock<T> next = k1 < k ? NextBlock<T>{a, b, m, n, k} : then;
    const std::int64_t next_k = k1 < k ? k1 : 0, next_count = std::min(depth<T>, next.k - next_k);
    const Store store = k0 > 0 ? Store::add : how == Store::past_caches && k > depth<T> ? Store::set : how;
    Ahead ahead;
    if (whole) {
      pack<tile_columns>(b_, b, n, k0, k_count);
      if (next.b.data != nullptr) {
        const std::int64_t all_tiles = (m + tile_rows - 1) / tile_rows * all_columns;
        ahead.b = Lines(next.b, next.n, next_k, next_count, all_tiles * fetches);
      }
    }
    for (std::int64_t i0 = 0; i0 < m; i0 += panel_rows) {
      const std::int64_t rows = std::min(panel_rows, m - i0), tiles = (rows + tile_rows - 1) / tile_rows;
      const std::int64_t i1 = i0 + panel_rows, parts = tiles * fetches;
      pack<tile_rows>(a_, a.from(i0), rows, k0, k_count);
      if (i1 < m && ask_for_a) {
        ahead.a = Lines(a.from(i1), std::min(panel_rows, m - i1), k0, k_count, all_columns * parts);
      } else if (next.a.data != nullptr && ask_for_a) {
        ahead.a = Lines(next.a, std::min(panel_rows, next.m), next_k, next_count, all_columns * parts);
      }
      for (std::int64_t j = 0; j < n; j += tile_columns) {
        float* const panel = b_ + j * items;
        const std::int64_t columns = std::min(tile_columns, n - j), j1 = j + tile_columns;
        if (i0 == 0 && !whole) {
          pack<tile_columns>(panel, b.from(j), columns, k0, k_count);
          if (j1 < n) {
            ahead.b = Lines(b.from(j1), std::min(tile_columns, n - j1), k0, k_count, parts);
          } else if (next.b.data != nullptr) {
            ahead.b = Lines(next.b, std::min(tile_columns, next.n), next_k, next_count, parts);
          }
        }
        for (std::int64_t i = 0; i < rows; i += tile_rows) {
          C* const to = c + (i0 + i) * ldc + j;
          const std::int64_t tile_m = std::min(tile_rows, rows - i);
          for (std::int64_t r = 0; store != Store::past_caches && r < tile_m; ++r) {
            __builtin_prefetch(to + r * ldc, 1);
          }
          part_of_tile<T>(tile_m, columns, a_ + i * items, panel, items, to, ldc, store, ahead);
        }
      }
    }
  }
}

template <class T, class C>
void BlockGemm::run(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, C* c, std::int64_t ldc,
                    Store how, const NextBlock<T>& next) {
  if constexpr (std::is_same_v<C, float>) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(c) % 64 == 0 && ldc % lanes == 0;
    product(m, n, k, a, b, c, ldc, how == Store::past_caches && !aligned ? Store::set : how, next);
    if (how == Store::past_caches) {
      fence_past_caches();
    }
  } else if (k <= depth<T> && how != Store::add) {
    product(m, n, k, a, b, c, ldc, how, next);
  } else {
    product(m, n, k, a, b, c_, n, Store::set, next);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const float sum = c_[i * n + j];
        c[i * ldc + j] = to_bf16(how == Store::add ? to_float(c[i * ldc + j]) + sum : sum);
      }
    }
  }
}

template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<float>, Operand<float>, float*,
                             std::int64_t, Store, const NextBlock<float>&);
template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<float>, Operand<float>, BFloat16*,
                             std::int64_t, Store, const NextBlock<float>&);
template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<BFloat16>, Operand<BFloat16>, float*,
                             std::int64_t, Store, const NextBlock<BFloat16>&);
template void BlockGemm::run(std::int64_t, std::int64_t, std::int64_t, Operand<BFloat16>, Operand<BFloat16>, BFloat16*,
                             std::int64_t, Store, const NextBlock<BFloat16>&);

}  // namespace orthant
