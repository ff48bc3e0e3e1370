// Axes that are wrong on purpose, each in a way that other systems were wrong: the parity tests must catch them all.
//
// [plugins.broken] size, fault: a data axis with one of these faults in its gradients (or an axis of one rank):
//   none          right
//   mean          sums, then divides by the number of ranks
//   forgotten     never sums the group `group`
//   twice         sums the group `group` twice
//   overwritten   the first rank's gradient stands for all
//   drift         adds a little to the last rank's gradients after the sum: replicas part
//   not_finite    fills the gradient of `group` with infinity on the last rank, before the sum
#include <orthant/plugin.h>

#include <limits>

namespace {

using namespace orthant;

class BrokenSums final : public Keeper {
 public:
  BrokenSums(std::string fault, std::string group) : fault_(std::move(fault)), group_(std::move(group)) {}

  void sum_grads(ParamGroup& group, Stream& s) override {
    if (group.summed) {
      return;
    }
    Group& sum = *group.sum;
    const bool here = group.name == group_;
    group.summed = true;
    if (fault_ == "forgotten" && here) {
      return;
    }
    if (fault_ == "not_finite" && here && sum.rank() == sum.size() - 1) {
      s.fill(group.grad, std::numeric_limits<double>::infinity());
    }
    if (fault_ == "overwritten") {
      sum.broadcast(group.grad, 0, s);
      return;
    }
    sum.all_reduce(group.grad, ReduceOp::sum, s);
    if (fault_ == "twice" && here) {
      sum.all_reduce(group.grad, ReduceOp::sum, s);
    }
    if (fault_ == "mean") {
      s.scale(group.grad, 1.0f / static_cast<float>(sum.size()));
    }
    if (fault_ == "drift" && sum.size() > 1 && sum.rank() == sum.size() - 1) {
      s.scale(group.grad, 1.0f + 1e-6f);
    }
  }

 private:
  std::string fault_, group_;
};

class Broken final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Ranks that split the batch.", .minimum = 1},
            {.name = "fault", .default_value = std::string("none"), .help = "What is wrong."},
            {.name = "group", .default_value = std::string("layer 1"), .help = "The parameters it is wrong for."}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    mesh.claim({.name = "broken", .size = static_cast<int>(config.integer("size")), .splits = {Dim::batch}});
    fault_ = config.text("fault");
    group_ = config.text("group");
  }
  void plan(Plan& plan, Mesh&) override { plan.chain(std::make_unique<BrokenSums>(fault_, group_)); }

 private:
  std::string fault_, group_;
};

}  // namespace

ORTHANT_PLUGIN("broken", Broken)
