// AcquireOrder: which parameter groups come next, for keepers that fetch ahead.
//
// The order in which groups are acquired is the same in every step, so after the first it is known which come next.
// Validations between steps have an order of their own: who follows the wrong one fetches what nobody reads. A step
// that goes another way is followed again from the next start of the order.
//
// Thread safety: one per keeper; not shared.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <orthant/abi/plan.h>

namespace orthant {

class AcquireOrder {
 public:
  // Group `id` is acquired; training: HookContext::training.
  void acquired(int id, bool training = true);
  // Those that follow the last acquired one, to the end of its step or validation; empty where that is not known.
  std::span<const int> ahead() const;
  // A validation ends with the next step's first group.
  void end_step();

 private:
  static constexpr std::size_t lost = static_cast<std::size_t>(-1);
  struct Passes {
    void acquired(int id);
    void end();
    std::vector<int> known;  // of an earlier time
    std::vector<int> now;    // of this one
    std::size_t at = 0;      // in known: the next expected
    bool other_way = false;
  };
  Passes training_, validation_;
  bool validating_ = false;
};

}  // namespace orthant
