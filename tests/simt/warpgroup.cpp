#include "tests/simt/warpgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simt/engine.h"
#include "tests/simt/shared_space.h"

namespace orthant::simt {
namespace {

constexpr int rows = Product::rows, depth = Product::depth;

void copy(const std::vector<Copy>& all) {
  for (const Copy& one : all) {
    if (one.from == nullptr) {
      std::memset(one.to, 0, 16);
    } else {
      std::memcpy(one.to, one.from, 16);
    }
    if (one.piece != nullptr) {
      --one.piece->on_its_way;
    }
  }
}

// --- matrices

// The element (outer, k) of a matrix in shared memory that a descriptor names, by the PTX ISA: "Shared Memory Matrix
// Layout", "Strides" and "Matrix Descriptor Format". outer: m or n.
class Matrix {
 public:
  // again: that its bytes may be read has been checked.
  Matrix(std::uint64_t descriptor, bool transposed, bool again, const Where& where)
      : transposed_(transposed), again_(again), where_(where) {
    const auto field = [&](int from, int bits) {
      return static_cast<std::uint32_t>(descriptor >> from & ((std::uint64_t{1} << bits) - 1));
    };
    start_ = field(0, 14) << 4;
    leading_ = field(16, 14) << 4;
    stride_ = field(32, 14) << 4;
    // Bits that the format has no field for; and by k the swizzle leaves `leading` unused, "assumed to be 1". What lies
    // there comes of an address that was not cut to its 18 bits: with it, another block's operands would be read.
    if ((descriptor & 0x3FF1'C000'C000'C000) != 0 || (!transposed && leading_ > 16)) {
      misuse(fmt::format("matrix descriptor {:#018x}: bits outside of its fields, as of a shared address that was not "
                         "cut to 18 bits",
                         descriptor),
             where);
    }
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
    const SharedPlace place = own_place(own_window() + address, 2, where_);
    const Piece& piece = piece_at(place);
    if (!again_ && piece.on_its_way > 0) {
      misuse("wgmma.mma_async reads what a copy has not brought yet", where_);
    }
    if (!again_ && piece.unfenced > 0) {
      misuse(fmt::format("wgmma.mma_async reads what thread {} wrote before its fence.proxy.async", piece.writer),
             where_);
    }
    std::memcpy(&bits, bytes_at(place), 2);
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }

 private:
  bool transposed_, again_;
  Where where_;
  std::uint32_t start_, leading_, stride_;
};

void read(Product& p, bool again, const Where& where) {
  const Matrix a(p.a, p.transposed_a, again, where), b(p.b, p.transposed_b, again, where);
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
  return block_state()
      .products[static_cast<std::size_t>(thread_number() / group_threads * kept_products) + number % kept_products];
}

void start_copy(std::byte* to, const void* from, Piece* piece, const Where& where) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    misuse(fmt::format("cp.async of 16 bytes from {} to {}: not aligned", from, static_cast<void*>(to)), where);
  }
  std::memset(to, 0xFF, 16);
  if (piece != nullptr) {
    ++piece->on_its_way;
  }
  this_thread_of_block().copies.push_back({to, from, piece});
}

}  // namespace

void copy_later(void* to, const void* from, const Where& where) {
  start_copy(static_cast<std::byte*>(to), from, nullptr, where);
}

void copy_later(std::uint32_t to, const void* from, bool there, const Where& where) {
  const SharedPlace place = own_place(to, 16, where);
  start_copy(bytes_at(place), there ? from : nullptr, &piece_at(place), where);
}

void end_copies() {
  this_thread_of_block().groups.push_back(std::exchange(this_thread_of_block().copies, {}));
}

void wait_for_copies(int left) {
  std::vector<std::vector<Copy>>& groups = this_thread_of_block().groups;
  const auto ending = groups.end() - std::min<std::ptrdiff_t>(left, std::ssize(groups));
  std::for_each(groups.begin(), ending, copy);
  groups.erase(groups.begin(), ending);
}

void arrive_after_copies(std::uint32_t barrier, const Where& where) {
  later([copies = std::exchange(this_thread_of_block().copies, {}), barrier, where] {
    copy(copies);
    arrive(barrier, where);
  });
}

void check_matrix_row(const void* row, const Where& where) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    misuse(fmt::format("ldmatrix: a row at {}, which 16 does not divide", row), where);
  }
}

void async_proxy_fence() {
  BlockThread& thread = this_thread_of_block();
  thread.proxy_fenced = true;
  for (Piece* const piece : thread.unfenced) {
    --piece->unfenced;
  }
  thread.unfenced.clear();
}

void wgmma_fence(const Where& where) {
  come_together("wgmma.fence", where);
  this_thread_of_block().fenced = true;
}

void wgmma(float* sums, int columns, std::uint64_t a, std::uint64_t b, bool transposed_a, bool transposed_b,
           const Where& where) {
  come_together("wgmma.mma_async", where);
  BlockThread& thread = this_thread_of_block();
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
    read(*product, false, where);
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
  const int lane = thread_number() % 32, first_row = thread_number() % group_threads / 32 * 16 + lane / 4;
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
  come_together("wgmma.commit_group", where);
  ++this_thread_of_block().batch;
}

void wgmma_wait(int left, const Where& where) {
  BlockThread& thread = this_thread_of_block();
  const int ended = thread.batch - left;  // batches before this one
  // Before any lane of this warp goes on, and may say that the place is free.
  std::erase_if(thread.unchecked, [&](const std::pair<std::uint64_t, int>& one) {
    if (one.second >= ended) {
      return false;
    }
    const std::unique_ptr<Product>& then = product_at(one.first);
    if (thread_number() % group_threads == 0 && then != nullptr && then->number == one.first) {
      const auto now = std::make_unique<Product>(*then);  // too large for a fiber's stack
      read(*now, true, where);
      if (std::memcmp(&now->of_a, &then->of_a, sizeof now->of_a) != 0 ||
          std::memcmp(&now->of_b, &then->of_b, sizeof now->of_b) != 0) {
        misuse("shared memory that a wgmma.mma_async reads was written before wgmma.wait_group", where);
      }
    }
    return true;
  });
  come_together("wgmma.wait_group", where);
  std::erase_if(thread.hidden, [&](const Hidden& hidden) {
    if (hidden.batch < ended) {
      std::memcpy(hidden.sums, hidden.values.data(), hidden.values.size() * sizeof(float));
    }
    return hidden.batch < ended;
  });
  thread.fenced = false;
}

}  // namespace orthant::simt
