// Sums of gradients, or of Adam's momentum, in a code of few bits, in two phases:
//
//   every rank cuts its contribution into as many parts as there are ranks, codes each, and sends part r to rank r;
//   rank r adds the parts up in the order of the ranks, codes the sum, and gives it to all.
//
// Each rank keeps what its own codes have lost, and adds it in the next step: "residual" of the contributions, "server"
// of the sums (Tang et al., "1-bit Adam", ICML 2021, algorithm 1). Both add up over ranks, so another layout loses
// nothing of them.
//
// Codes begin anew at every parameter. Ranks that hold copies of one parameter, beside different parts of others, so
// send the same of it, and the copies stay equal. An expert without tokens is coded as zeros.
//
// Thread safety: as for keepers.
#pragma once

#include <set>
#include <vector>

#include "codes.h"
#include "whole_sums.h"

namespace orthant::compress {

struct CodedOptions {
  Code code;
  std::int64_t warm_up = 0;  // steps whose sums are left to others
  // With onebit_adam: the momentum is summed, and the optimizer meets it in the place of the gradient.
  bool momentum = false;
  double beta1 = 0.9;
};

struct Part;  // what one rank sums of a group

class CodedSums final : public WholeSums {
 public:
  explicit CodedSums(const CodedOptions& options) : WholeSums(options.warm_up), options_(options) {}
  std::vector<StateSpec> state(const ParamGroup& group) const override;

 private:
  bool takes(const ParamGroup& group) const override { return options_.momentum || WholeSums::takes(group); }
  void sum(ParamGroup& group, const HookContext& at) override;
  void begin_momentum(ParamGroup& group, Stream& s) const;
  void exchange(ParamGroup& group, const std::vector<Part>& parts, Stream& s) const;

  CodedOptions options_;
  std::set<int> begun_;  // groups whose momentum has been looked at since the start of this process
};

}  // namespace orthant::compress
