// AcquireOrder: which parameter groups come next, for keepers that fetch ahead.
//
// The order in which groups are acquired is the same in every step, so after the first it is known which come next. A
// step that goes another way (a validation between two) is followed again from the next start of the order.
//
// Thread safety: one per keeper; not shared.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace orthant {

class AcquireOrder {
 public:
  // Group `id` is acquired.
  void acquired(int id);
  // Those that follow the last acquired one, to the end of the step; empty where that is not known.
  std::span<const int> ahead() const;
  void end_step();

 private:
  static constexpr std::size_t lost = static_cast<std::size_t>(-1);
  std::vector<int> known_;  // of an earlier step
  std::vector<int> now_;    // of this one
  std::size_t at_ = 0;      // in known_: the next expected
  bool other_way_ = false;
};

}  // namespace orthant
