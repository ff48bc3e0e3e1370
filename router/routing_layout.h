// Which tokens a rank routes, and which it hands to experts, where the tokens of a group are split among ranks.
//
// Capacity, seats and the balance loss belong to whole groups of consecutive tokens. Where ranks hold parts of the same
// sequences, they gather the logits (E numbers a token, not d) and every one of them routes all of the tokens; each
// then keeps the rows that it holds. So what a token's seat depends on never depends on the layout.
#pragma once

#include <vector>

#include <orthant/plan.h>

namespace orthant {

// The rows that `rank` holds in `region` of `sequences` whole sequences of a token space laid end to end: RowRun::from
// among its own rows, RowRun::to among the whole. Errors: LayoutError where tokens do not divide among ranks.
std::vector<RowRun> held_rows(const Plan& plan, Region region, std::int64_t sequences, int rank, int space = 0);

// Whatever a rank routes must be among what it hands to experts: only there are gradients of its weights.
// Errors: LayoutError naming the axis.
void check_routed_rows(const Plan& plan);

// The rows that each expert gets of a rank that routes `tokens` in whole groups, where the exchange sends equal blocks;
// else 0.
std::int64_t rows_of_block(const Plan& plan, const GateConfig& gate, std::int64_t tokens);

class RoutingLayout {
 public:
  // Collective over the world the first time. Errors: as check_routed_rows.
  explicit RoutingLayout(Plan& plan, int space = 0);

  // This rank holds whole sequences: it routes them without others, and hands all of them to experts.
  bool alone() const { return group_ == nullptr; }
  // own [tokens_R, C], the rows of region router -> [T, C], the whole sequences of these ranks in order. Collective.
  Tensor gather(const Tensor& own, Stream& s) const;
  // whole [T, ...] -> the rows that this rank holds in `region`.
  Tensor take(Region region, const Tensor& whole, Stream& s) const;
  // counts i32 [...] of what this rank routes += those of every other rank that routes something else of the same
  // micro-batch on this stage: the same everywhere then. Collective.
  void sum_over_batch(const Tensor& counts, Stream& s) const;
  // The adjoint of take: `own` at its rows of [tokens, ...], zero elsewhere.
  Tensor put(Region region, const Tensor& own, std::int64_t tokens, Stream& s) const;

 private:
  std::int64_t sequences(std::int64_t tokens) const;

  const Plan& plan_;
  int space_;
  Group* group_;  // the ranks that hold parts of the same sequences
  Group* batch_;  // the ranks of the stage, where the balance loss knows their load
};

}  // namespace orthant
