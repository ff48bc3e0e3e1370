// Sums of gradients of low rank: PowerSGD (Vogels et al., NeurIPS 2019, algorithms 1 and 2).
//
// Of a matrix M [m, n], the gradient and what earlier steps left over, travel P = M Q [m, r], whose sum is made
// orthogonal, and Q' = M^T P [n, r], whose sum is where the next step begins. The sum is P Q'^T. What a rank's M has
// more than its share of that is left over. Parameters that are no matrices, or are no larger than their two factors,
// are summed as they are.
//
// A parameter is worked on by itself: see coded_sums.h for why.
//
// Thread safety: as for keepers.
#pragma once

#include <cstdint>
#include <vector>

#include "whole_sums.h"

namespace orthant::compress {

struct LowRankOptions {
  std::int64_t rank = 4;
  std::int64_t warm_up = 0;  // steps whose sums are left to others
  std::uint64_t seed = 0;    // of the first Q
};

class LowRankSums final : public WholeSums {
 public:
  explicit LowRankSums(const LowRankOptions& options) : WholeSums(options.warm_up), options_(options) {}
  std::vector<StateSpec> state(const ParamGroup& group) const override;

 private:
  bool factored(const Param& p) const;
  std::int64_t columns(const ParamGroup& group) const;  // of all factored parameters, together
  void begin(ParamGroup& group, const Tensor& q, Stream& s) const;
  void sum(ParamGroup& group, const HookContext& at) override;

  LowRankOptions options_;
};

}  // namespace orthant::compress
