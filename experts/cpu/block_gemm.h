// The product of one block on one thread: C[m, n] (+)= A B, from operands of either layout and f32 or bf16.
//
// Method: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008). Both operands are copied
// into panels: transposed on the way, and bf16 converted to f32 or paired for bf16 products (panel_items.h). So layout
// and dtype cost nothing in the product. A register tile of C is accumulated over up to `depth` steps at a time.
// Written here because experts get few rows each: a library call's own preparation, once an expert, costs more than its
// product is worth.
//
// Determinism: an element of C is the sum over k in order, in parts of `depth` steps, whatever block it is in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/cpu/bf16.h"

namespace orthant {

// One side of a product. Element (i, k) is data[i * stride + k] when k is contiguous, else data[k * stride + i].
// i counts rows of A, or columns of B.
template <class T>
struct Operand {
  const T* data = nullptr;
  std::int64_t stride = 0;
  bool k_contiguous = false;

  Operand from(std::int64_t i) const { return {data + (k_contiguous ? i * stride : i), stride, k_contiguous}; }
};

// What the next call reads: operands and sizes as in BlockGemm::run. data is null where none is known.
template <class T>
struct NextBlock {
  Operand<T> a, b;
  std::int64_t m = 0, n = 0, k = 0;
};

// What becomes of C. past_caches: as set, but C goes to memory, for one that is too large to be read from a cache later
// (only a wish).
enum class Store { set, add, past_caches };

// Rows and columns of C that are worth one call: work is cut into blocks of at most this size.
inline constexpr std::int64_t block_rows = 528;
inline constexpr std::int64_t block_columns = 512;

// The scratch memory of a thread: panels of A and B, and a block of C in f32.
class BlockGemm {
 public:
  static std::size_t bytes();
  // memory: bytes() of them, aligned to 64; not owned.
  explicit BlockGemm(void* memory);

  // C[m, n] = A B, or += A B; C is row-major with rows ldc apart, f32 or bf16 (sums are f32, rounded once).
  // next: of the next call, if known, to be asked for from memory meanwhile. REQUIRES: m <= block_rows, n <=
  // block_columns. k = 0 gives zero.
  template <class T, class C>
  void run(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, C* c, std::int64_t ldc,
           Store how, const NextBlock<T>& next = {});

 private:
  template <class T, class C>
  void product(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, C* c, std::int64_t ldc,
               Store how, const NextBlock<T>& next);

  template <class T, class C>
  void few_rows_product(std::int64_t m, std::int64_t n, std::int64_t k, Operand<T> a, Operand<T> b, C* c,
                        std::int64_t ldc, Store how, const NextBlock<T>& next);

  float* a_;  // panels of A
  float* b_;  // panels of B, or sums of few rows
  float* c_;  // C where it is bf16 and does not come from registers whole
};

}  // namespace orthant
