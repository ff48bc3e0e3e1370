#include "router/routing_layout.h"

#include <orthant/settings.h>

#include <algorithm>

#include "core/plan/groups.h"
#include "router/rules/capacity.h"

namespace orthant {
namespace {

// Axes that split position in `region`: those that hold slices of every sequence, then those that cut the rows of what
// is left (AxisSpec::splits_in). So the tokens of a rank are cut.
std::vector<AxisId> order_of_cuts(const Plan& plan, Region region) {
  std::vector<AxisId> axes = plan.axes_of(Dim::position, region);
  std::stable_partition(axes.begin(), axes.end(), [&](AxisId axis) {
    const std::vector<RegionDim>& cuts = plan.mesh().axes()[axis].splits_in;
    return std::find(cuts.begin(), cuts.end(), RegionDim{region, Dim::position}) == cuts.end();
  });
  return axes;
}

}  // namespace

// No expert gets more than it has seats for those tokens' groups, nor a token that the rank hands over twice.
std::int64_t rows_of_block(const Plan& plan, const GateConfig& gate, std::int64_t tokens) {
  const TokenExchange* exchange = plan.exchange();
  if (exchange == nullptr || !exchange->equal_blocks()) {
    return 0;
  }
  const std::int64_t handed = plan.rows(Region::experts, tokens).count;
  const std::int64_t of_group = std::min(handed, capacity(gate, gate.group_tokens));
  return std::max<std::int64_t>(1, std::min(handed, tokens / gate.group_tokens * of_group));
}

std::vector<RowRun> held_rows(const Plan& plan, Region region, std::int64_t sequences, int rank, int space) {
  const std::int64_t length = plan.spaces()[static_cast<std::size_t>(space)].positions;
  const std::vector<Range> positions = plan.positions(region, rank, space);
  const Range rows = plan.rows(region, sequences * plan.held_positions(region, rank, space), rank);
  std::vector<RowRun> runs;
  std::int64_t at = 0;  // among the rows of the held positions
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (const Range& run : positions) {
      const std::int64_t first = std::max(at, rows.begin), last = std::min(at + run.count, rows.begin + rows.count);
      if (first < last) {
        runs.push_back({first - rows.begin, sequence * length + run.begin + first - at, last - first});
      }
      at += run.count;
    }
  }
  return runs;
}

void check_routed_rows(const Plan& plan) {
  if (plan.settings().moe.experts == 0) {
    return;
  }
  const std::vector<AxisId> routed = order_of_cuts(plan, Region::router), sent = order_of_cuts(plan, Region::experts);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (i >= routed.size() || routed[i] != sent[i]) {
      const std::string& name = plan.mesh().axes()[sent[i]].name;
      throw LayoutError(fmt::format("axis '{}' splits tokens in region 'experts', but not in region 'router' before "
                                    "anything else does: a rank would route tokens whose experts it never asks",
                                    name),
                        name, Dim::position);
    }
  }
}

RoutingLayout::RoutingLayout(Plan& plan, int space)
    : plan_(plan), space_(space), group_(routing_group(plan)), batch_(balance_group(plan)) {
  check_routed_rows(plan);
}

std::int64_t RoutingLayout::sequences(std::int64_t tokens) const {
  return tokens / plan_.spaces()[static_cast<std::size_t>(space_)].positions;
}

Tensor RoutingLayout::gather(const Tensor& own, Stream& s) const {
  if (alone()) {
    return own;
  }
  const std::int64_t tokens = own.dim(0) * group_->size(), columns = own.dim(1);
  Tensor blocks = s.device().empty(own.dtype(), {tokens, columns});  // of one rank after another
  group_->all_gather(blocks, own, s);
  std::vector<RowRun> runs;
  for (std::size_t member = 0; member < group_->members().size(); ++member) {
    for (RowRun run : held_rows(plan_, Region::router, sequences(tokens), group_->members()[member], space_)) {
      run.from += static_cast<std::int64_t>(member) * own.dim(0);
      runs.push_back(run);
    }
  }
  Tensor whole = s.device().empty(own.dtype(), blocks.shape());
  s.copy_rows(whole, blocks, runs);
  return whole;
}

namespace {

// Rows of any tensor whose outermost dimension is tokens.
Shape with_rows(Shape shape, std::int64_t rows) {
  shape.set(0, rows);
  return shape;
}

std::int64_t rows_of(const std::vector<RowRun>& runs) {
  std::int64_t rows = 0;
  for (const RowRun& run : runs) {
    rows += run.rows;
  }
  return rows;
}

}  // namespace

Tensor RoutingLayout::take(Region region, const Tensor& whole, Stream& s) const {
  if (alone()) {
    return whole;
  }
  std::vector<RowRun> runs = held_rows(plan_, region, sequences(whole.dim(0)), plan_.mesh().rank(), space_);
  for (RowRun& run : runs) {
    std::swap(run.from, run.to);
  }
  Tensor own = s.device().empty(whole.dtype(), with_rows(whole.shape(), rows_of(runs)));
  s.copy_rows(own, whole, runs);
  return own;
}

void RoutingLayout::sum_over_batch(const Tensor& counts, Stream& s) const {
  if (batch_ == nullptr || batch_->size() == 1) {
    return;
  }
  if (!plan_.counts_tokens(Region::router, true)) {
    s.fill(counts, 0);  // another rank routes the same tokens, and counts them
  }
  batch_->all_reduce(counts, ReduceOp::sum, s);
}

Tensor RoutingLayout::put(Region region, const Tensor& own, std::int64_t tokens, Stream& s) const {
  if (alone()) {
    return own;
  }
  Tensor whole = s.device().empty(own.dtype(), with_rows(own.shape(), tokens));
  s.fill(whole, 0);
  s.copy_rows(whole, own, held_rows(plan_, region, sequences(tokens), plan_.mesh().rank(), space_));
  return whole;
}

}  // namespace orthant
