// BlendOrder: in which order the parts of a blend take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace orthant {

// After any n turns each part has had its share of n, to within less than one turn: |turns - share * n| < 1.
//
// Why: a part of share w has its j-th turn no earlier than turn floor((j - 1) / w) and before turn ceil(j / w), turns
// counted from 0. Turns within these windows keep the bound: the j-th one is given by n only if j - 1 < w n, and is
// missing at n only if j > w n. There is an order within them, since giving each part w of every turn is one in
// fractions, and assignments of jobs to turns have whole solutions wherever they have fractional ones. Earliest
// deadline first finds it, as it does for all jobs of one turn each. (Baruah, Cohen, Plaxton, Varvel, "Proportionate
// progress", Algorithmica 1996.)
//
// Thread safety: constant.
class BlendOrder {
 public:
  // Shares are exact where the weights times a power of ten up to 10^6 are whole, with a sum of at most 2^20 once
  // reduced; others are rounded to 2^-20. Errors: ConfigError for no weight, for one that is not above 0, or is so
  // small beside the others that its part has no turn.
  explicit BlendOrder(const std::vector<double>& weights);

  struct Turn {
    std::size_t part = 0;
    std::int64_t number = 0;  // of the part's own turns, from 0
  };
  // REQUIRES: n >= 0. O(1): the order repeats after `period` turns.
  Turn operator()(std::int64_t n) const;

  std::int64_t period() const { return period_; }
  const std::vector<std::int64_t>& turns() const { return turns_; }  // of each part in a period

 private:
  std::int64_t period_ = 0;
  std::vector<std::int64_t> turns_;
  std::vector<std::uint32_t> part_, number_;  // of each turn of a period
};

}  // namespace orthant
