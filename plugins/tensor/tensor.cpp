// The tensor axis (Shoeybi et al., "Megatron-LM"): each rank holds some heads of every attention, some channels of
// every FFN, and a slice of the vocabulary. Activations between these regions are the same on all of its ranks, or,
// with sequence_parallel, cut by rows among them (Korthikanti et al., 2022).
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include "boundaries.h"

namespace {

using namespace orthant;

class TensorAxis final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size",
             .default_value = std::int64_t{1},
             .help = "Ranks that split heads, FFN channels and the vocabulary.",
             .minimum = 1,
             .maximum = 65536},
            {.name = "sequence_parallel",
             .default_value = false,
             .help = "Between these, in norms, dropout and the router, each rank has its share of the rows instead of "
                     "all of them."},
            {.name = "experts",
             .default_value = std::string("split"),
             .help = "What these ranks do with routed experts: each holds some channels of every expert, or they take "
                     "different tokens to whole experts, which the expert axis may then divide among them.",
             .choices = {"split", "fold"}}};
  }

  void claim(Mesh& mesh, const Table& config) override {
    AxisSpec axis{.name = "tensor",
                  .size = static_cast<int>(config.integer("size")),
                  .splits = {Dim::head, Dim::ffn, Dim::vocab}};
    cut_rows_ = axis.size > 1 && config.boolean("sequence_parallel");
    fold_ = axis.size > 1 && config.text("experts") == "fold";
    if (cut_rows_) {
      axis.splits_in.push_back({Region::norm, Dim::position});
    }
    if (cut_rows_ || fold_) {
      axis.splits_in.push_back({Region::router, Dim::position});
    }
    if (fold_) {
      axis.splits_in.push_back({Region::experts, Dim::position});
      axis.joins_in.push_back({Region::experts, Dim::ffn});
    }
    axis_ = mesh.claim(axis);
  }

  std::int64_t likeness(const Mesh&, int) const override { return 0; }
  void plan(Plan& plan, Mesh& mesh) override {
    if (mesh.axes()[axis_].size == 1) {
      return;
    }
    Group& group = mesh.group(axis_);
    bind_split_region(plan, group, Region::attention, Dim::head);
    bind_split_region(plan, group, Region::ffn, Dim::ffn);
    plan.bind({Region::embedding, Side::leave}, leave(group), moved(Dim::vocab));
    plan.bind({Region::head, Side::enter}, enter(group), moved(Dim::vocab));
    if (plan.settings().moe.experts == 0) {
      return;
    }
    if (!fold_) {
      bind_split_region(plan, group, Region::experts, Dim::ffn);
      // Combine weights, the same on all ranks: each sees its own channels' part of their gradient.
      plan.bind({Region::router, Side::leave}, tensor::make_copy(group), Dim::ffn);
    } else if (!cut_rows_) {
      plan.bind({Region::router, Side::enter}, tensor::make_take_rows(group), Dim::position);
      plan.bind({Region::experts, Side::enter}, tensor::make_take_rows(group), Dim::position);
      plan.bind({Region::experts, Side::leave}, tensor::make_join_rows(group), Dim::position);
    }
  }

 private:
  std::unique_ptr<Boundary> enter(Group& group) const {
    return cut_rows_ ? tensor::make_gather_rows(group) : tensor::make_copy(group);
  }
  std::unique_ptr<Boundary> leave(Group& group) const {
    return cut_rows_ ? tensor::make_scatter_sum(group) : tensor::make_sum(group);
  }
  Dim moved(Dim split) const { return cut_rows_ ? Dim::position : split; }
  void bind_split_region(Plan& plan, Group& group, Region region, Dim split) const {
    plan.bind({region, Side::enter}, enter(group), moved(split));
    plan.bind({region, Side::leave}, leave(group), moved(split));
  }

  bool cut_rows_ = false, fold_ = false;
  AxisId axis_ = 0;
};

}  // namespace

ORTHANT_PLUGIN("tensor", TensorAxis)
