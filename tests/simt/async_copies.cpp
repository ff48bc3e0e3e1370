#include "tests/simt/async_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "tests/simt/engine.h"

namespace orthant::simt {
namespace {

struct Copy {
  void* to;
  const void* from;  // null: zeros
};

// Of one thread: the copies of its open group, and the groups that have not ended, the oldest first.
struct ThreadCopies {
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
};

// What a block leaves behind belongs to none.
ThreadCopies& copies_of_this_thread() {
  struct BlockCopies {
    std::uint64_t block = 0;
    std::vector<ThreadCopies> threads;
  };
  static thread_local BlockCopies state;
  if (state.block != block_number()) {
    state.block = block_number();
    state.threads.assign(position->block_size.x, {});
  }
  return state.threads[position->thread.x];
}

void end(const std::vector<Copy>& group) {
  for (const Copy& one : group) {
    if (one.from == nullptr) {
      std::memset(one.to, 0, 16);
    } else {
      std::memcpy(one.to, one.from, 16);
    }
  }
}

}  // namespace

void copy_later(void* to, const void* from, const std::source_location& where) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    misuse(fmt::format("cp.async of 16 bytes from {} to {}: not aligned", from, to), where);
  }
  std::memset(to, 0xFF, 16);
  copies_of_this_thread().open.push_back({to, from});
}

void end_copies() {
  ThreadCopies& copies = copies_of_this_thread();
  copies.groups.push_back(std::exchange(copies.open, {}));
}

void wait_for_copies(int left) {
  std::vector<std::vector<Copy>>& groups = copies_of_this_thread().groups;
  const auto ending = groups.end() - std::min<std::ptrdiff_t>(left, std::ssize(groups));
  std::for_each(groups.begin(), ending, end);
  groups.erase(groups.begin(), ending);
}

void check_matrix_row(const void* row, const std::source_location& where) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    misuse(fmt::format("ldmatrix: a row at {}, which 16 does not divide", row), where);
  }
}

}  // namespace orthant::simt
