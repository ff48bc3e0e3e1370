#include "tests/simt/warpgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simt/engine.h"

namespace orthant::simt {
namespace {

constexpr std::uint32_t shared_begin = 128;
constexpr int group_threads = 128, rows = 64, depth = 16, most_columns = 256, kept_products = 64;

struct Copy {
  std::byte* to;
  const void* from;  // null: zeros
};

// The operands of one product as they were read, [rows or columns][depth].
struct Product {
  std::uint64_t number = 0;  // among the group's, from 1; 0: none
  std::uint64_t a = 0, b = 0;
  bool transposed_a = false, transposed_b = false;
  int columns = 0;
  std::array<float, rows * depth> of_a;
  std::array<float, most_columns * depth> of_b;
};

// Sums that a thread must not see yet.
struct Hidden {
  float* sums;
  std::vector<float> values;
  int batch;  // the last that adds to them
};

struct Thread {
  std::vector<Copy> copies;
  std::vector<std::vector<Copy>> groups;  // the oldest first
  bool proxy_fenced = true, fenced = false;
  std::uint64_t products = 0;  // of this thread so far
  int batch = 0;               // the open one; those before are committed
  std::vector<Hidden> hidden;
  std::vector<std::pair<std::uint64_t, int>> unchecked;  // products by number, and their batch
};

// Of the block that runs.
struct State {
  std::uint64_t block = 0;
  std::vector<Thread> threads;
  std::vector<std::unique_ptr<Product>> products;  // [group][number % kept_products]
};

State& state() {
  static thread_local State state;
  if (state.block != block_number()) {
    state.block = block_number();
    const auto threads = static_cast<std::size_t>(position->block_size.x);
    state.threads.assign(threads, {});
    state.products.resize((threads + group_threads - 1) / group_threads * kept_products);
    for (auto& product : state.products) {
      product.reset();
    }
  }
  return state;
}

int here() {
  return static_cast<int>(position->thread.x);
}

Thread& self() {
  return state().threads[here()];
}

std::byte* pointer(std::uint32_t address, std::size_t bytes, const Where& where) {
  if (address < shared_begin || address - shared_begin + bytes > dynamic_shared_size()) {
    misuse(fmt::format("shared address {:#x} of {} bytes is outside of the block's {}", address, bytes,
                       dynamic_shared_size()),
           where);
  }
  return static_cast<std::byte*>(dynamic_shared_bytes()) + (address - shared_begin);
}

// --- barriers

// A barrier's 64 bits: count, arrivals that the phase still waits for, parity of the phase, and a mark.
struct BarrierWord {
  std::uint16_t count, pending, parity, mark;
};
constexpr std::uint16_t mark = 0x6B1C;
static_assert(sizeof(BarrierWord) == 8);

BarrierWord load_barrier(std::uint32_t barrier, const Where& where) {
  BarrierWord word;
  std::memcpy(&word, pointer(barrier, sizeof word, where), sizeof word);
  if (barrier % 8 != 0 || word.mark != mark) {
    misuse(fmt::format("there is no barrier at shared address {:#x}", barrier), where);
  }
  return word;
}

void store_barrier(std::uint32_t barrier, const BarrierWord& word, const Where& where) {
  std::memcpy(pointer(barrier, sizeof word, where), &word, sizeof word);
}

void copy(const std::vector<Copy>& all) {
  for (const Copy& one : all) {
    if (one.from == nullptr) {
      std::memset(one.to, 0, 16);
    } else {
      std::memcpy(one.to, one.from, 16);
    }
  }
}

// --- matrices

// The element (outer, k) of a matrix in shared memory that a descriptor names, by the PTX ISA: "Shared Memory Matrix
// Layout", "Strides" and "Matrix Descriptor Format". outer: m or n.
class Matrix {
 public:
  Matrix(std::uint64_t descriptor, bool transposed, const Where& where) : transposed_(transposed), where_(where) {
    const auto field = [&](int from, int bits) {
      return static_cast<std::uint32_t>(descriptor >> from & ((std::uint64_t{1} << bits) - 1));
    };
    start_ = field(0, 14) << 4;
    leading_ = field(16, 14) << 4;
    stride_ = field(32, 14) << 4;
    if (field(62, 2) != 1) {
      misuse(fmt::format("matrix descriptor {:#018x}: only the 128-byte swizzle is known here", descriptor), where);
    }
    // The swizzle's pattern repeats every 1024 bytes; one that begins elsewhere would need the base offset.
    if (field(49, 3) != 0 || (start_ >> 7 & 7) != 0) {
      misuse(
          fmt::format("matrix descriptor {:#018x}: a pattern of the swizzle begins at multiples of 1024", descriptor),
          where);
    }
  }
  float at(int outer, int k) const {
    const auto o = static_cast<std::uint32_t>(outer), i = static_cast<std::uint32_t>(k);
    // Rows of 128 bytes, eight of them a pattern. By k: a row holds 64 steps of k, and `stride` leads from eight rows
    // to the next eight. By m or n: a row is one step of k and holds 64 of m or n, `stride` leads to the next eight
    // steps and `leading` to the next 64.
    std::uint32_t address = transposed_ ? start_ + o / 64 * leading_ + i / 8 * stride_ + i % 8 * 128 + o % 64 * 2
                                        : start_ + o / 8 * stride_ + o % 8 * 128 + i * 2;
    address ^= (address >> 7 & 7) << 4;
    std::uint16_t bits;
    std::memcpy(&bits, pointer(address, 2, where_), 2);
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }

 private:
  bool transposed_;
  Where where_;
  std::uint32_t start_, leading_, stride_;
};

void read(Product& p, const Where& where) {
  const Matrix a(p.a, p.transposed_a, where), b(p.b, p.transposed_b, where);
  for (int k = 0; k < depth; ++k) {
    for (int i = 0; i < rows; ++i) {
      p.of_a[i * depth + k] = a.at(i, k);
    }
    for (int i = 0; i < p.columns; ++i) {
      p.of_b[i * depth + k] = b.at(i, k);
    }
  }
}

// The group's product of this number: the first thread to come reads it.
std::unique_ptr<Product>& product_at(std::uint64_t number) {
  return state().products[static_cast<std::size_t>(here() / group_threads * kept_products) + number % kept_products];
}

// All lanes of the warp come to the same call.
void aligned(const char* function, const Where& where) {
  warp_collective(Collective::barrier, function, ~0u, 0, 0, where);
}

}  // namespace

std::uint32_t shared_address(const void* p, const Where& where) {
  const auto offset = reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(dynamic_shared_bytes());
  if (offset > dynamic_shared_size()) {
    misuse("the address is not of dynamic shared memory", where);
  }
  return static_cast<std::uint32_t>(offset) + shared_begin;
}

void make_barrier(std::uint32_t barrier, unsigned count, const Where& where) {
  store_barrier(barrier, {static_cast<std::uint16_t>(count), static_cast<std::uint16_t>(count), 0, mark}, where);
}

void arrive(std::uint32_t barrier, const Where& where) {
  BarrierWord word = load_barrier(barrier, where);
  const bool ends = --word.pending == 0;
  if (ends) {
    word.pending = word.count;
    word.parity ^= 1;
  }
  store_barrier(barrier, word, where);
  if (ends) {
    wake(pointer(barrier, 8, where));
  }
}

void wait_for_phase(std::uint32_t barrier, unsigned parity, const Where& where) {
  while (load_barrier(barrier, where).parity == parity) {
    sleep(pointer(barrier, 8, where), "mbarrier.try_wait", where);
  }
  self().proxy_fenced = false;
}

void copy_later(void* to, const void* from, const Where& where) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    misuse(fmt::format("cp.async of 16 bytes from {} to {}: not aligned", from, to), where);
  }
  std::memset(to, 0xFF, 16);
  self().copies.push_back({static_cast<std::byte*>(to), from});
}

void copy_later(std::uint32_t to, const void* from, bool there, const Where& where) {
  copy_later(pointer(to, 16, where), there ? from : nullptr, where);
}

void end_copies() {
  self().groups.push_back(std::exchange(self().copies, {}));
}

void wait_for_copies(int left) {
  std::vector<std::vector<Copy>>& groups = self().groups;
  const auto ending = groups.end() - std::min<std::ptrdiff_t>(left, std::ssize(groups));
  std::for_each(groups.begin(), ending, copy);
  groups.erase(groups.begin(), ending);
}

void arrive_after_copies(std::uint32_t barrier, const Where& where) {
  later([copies = std::exchange(self().copies, {}), barrier, where] {
    copy(copies);
    arrive(barrier, where);
  });
}

void async_proxy_fence() {
  self().proxy_fenced = true;
}

void wgmma_fence(const Where& where) {
  aligned("wgmma.fence", where);
  self().fenced = true;
}

void wgmma(float* sums, int columns, std::uint64_t a, std::uint64_t b, bool transposed_a, bool transposed_b,
           const Where& where) {
  aligned("wgmma.mma_async", where);
  Thread& thread = self();
  if (!thread.fenced) {
    misuse("wgmma.mma_async before wgmma.fence: the sums may not be there yet", where);
  }
  if (!thread.proxy_fenced) {
    misuse("wgmma.mma_async after a wait and before fence.proxy.async: it may not see what was copied", where);
  }
  const std::uint64_t number = ++thread.products;
  std::unique_ptr<Product>& product = product_at(number);
  if (product == nullptr || product->number < number) {
    product = std::make_unique<Product>();
    product->number = number;
    product->a = a;
    product->b = b;
    product->transposed_a = transposed_a;
    product->transposed_b = transposed_b;
    product->columns = columns;
    read(*product, where);
  }
  const Product& p = *product;
  if (p.number != number || p.a != a || p.b != b || p.transposed_a != transposed_a || p.transposed_b != transposed_b ||
      p.columns != columns) {
    misuse("wgmma.mma_async: the threads of a warp group must make the same calls", where);
  }
  thread.unchecked.push_back({number, thread.batch});

  auto hidden = thread.hidden.begin();
  while (hidden != thread.hidden.end() && hidden->sums != sums) {
    ++hidden;
  }
  const int held = columns / 2;
  if (hidden == thread.hidden.end()) {
    thread.hidden.push_back({sums, std::vector<float>(sums, sums + held), 0});
    hidden = thread.hidden.end() - 1;
  }
  hidden->batch = thread.batch;
  const int lane = here() % 32, first_row = here() % group_threads / 32 * 16 + lane / 4;
  for (int i = 0; i < held; ++i) {
    const float* const of_a = p.of_a.data() + (first_row + i / 2 % 2 * 8) * depth;
    const float* const of_b = p.of_b.data() + (i / 4 * 8 + lane % 4 * 2 + i % 2) * depth;
    float sum = hidden->values[i];
    for (int k = 0; k < depth; ++k) {
      sum += of_a[k] * of_b[k];
    }
    hidden->values[i] = sum;
    sums[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

void wgmma_commit(const Where& where) {
  aligned("wgmma.commit_group", where);
  ++self().batch;
}

void wgmma_wait(int left, const Where& where) {
  aligned("wgmma.wait_group", where);
  Thread& thread = self();
  const int ended = thread.batch - left;  // batches before this one
  std::erase_if(thread.hidden, [&](const Hidden& hidden) {
    if (hidden.batch < ended) {
      std::memcpy(hidden.sums, hidden.values.data(), hidden.values.size() * sizeof(float));
    }
    return hidden.batch < ended;
  });
  std::erase_if(thread.unchecked, [&](const std::pair<std::uint64_t, int>& one) {
    if (one.second >= ended) {
      return false;
    }
    const std::unique_ptr<Product>& then = product_at(one.first);
    if (here() % group_threads == 0 && then != nullptr && then->number == one.first) {
      const auto now = std::make_unique<Product>(*then);  // too large for a fiber's stack
      read(*now, where);
      if (std::memcmp(&now->of_a, &then->of_a, sizeof now->of_a) != 0 ||
          std::memcmp(&now->of_b, &then->of_b, sizeof now->of_b) != 0) {
        misuse("shared memory that a wgmma.mma_async reads was written before wgmma.wait_group", where);
      }
    }
    return true;
  });
  thread.fenced = false;
}

}  // namespace orthant::simt
