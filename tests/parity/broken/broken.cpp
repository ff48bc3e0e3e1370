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
//   one_class     sums all parameters but routers (a class of parameters that a rule forgot)
//   owner         every rank counts its replica in the norm
//   sharded       right: each rank updates its share of the weights and gathers the others' (ZeRO stage 1)
//   stale         the same, without gathering
//   head          divides the gradient that leaves the head by the number of ranks
#include <orthant/plugin.h>

#include <limits>

namespace {

using namespace orthant;

class BrokenSums final : public Keeper {
 public:
  BrokenSums(std::string fault, std::string group) : fault_(std::move(fault)), group_(std::move(group)) {}

  bool early() const override { return true; }
  std::vector<StateSpec> state(const ParamGroup&) const override { return {}; }

  void adopt(ParamGroup& group, Holding& holding) override {
    holding.owner = holding.owner || fault_ == "owner";
    if (!sharded()) {
      return;
    }
    const std::int64_t ranks = group.sum->size(), each = (group.elements + ranks - 1) / ranks;
    holding.padded = each * ranks;
    holding.owned_begin = each * group.sum->rank();
    holding.owned_elements = each;
    holding.owner = true;
  }

  void after_step(ParamGroup& group, Change why, const HookContext& at) override {
    const bool gathers = fault_ == "sharded" || (fault_ == "stale" && why == Change::start);
    if (gathers && group.sum->size() > 1) {
      group.sum->all_gather(group.weight, group.owned_weight, at.stream);
    }
  }

  bool sum_grads(ParamGroup& group, const HookContext& at) override {
    Stream& s = at.stream;
    Group& sum = *group.sum;
    const bool here = group.name == group_;
    if (fault_ == "forgotten" && here) {
      return true;
    }
    if (fault_ == "not_finite" && here && sum.rank() == sum.size() - 1) {
      s.fill(group.grad, std::numeric_limits<double>::infinity());
    }
    if (fault_ == "overwritten") {
      sum.broadcast(group.grad, 0, s);
      return true;
    }
    if (fault_ == "one_class") {
      for (const Param& p : group.params) {
        if (p.spec.region != Region::router) {
          sum.all_reduce(group.grad_of(p), ReduceOp::sum, s);
        }
      }
      return true;
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
    return true;
  }

 private:
  bool sharded() const { return fault_ == "sharded" || fault_ == "stale"; }
  std::string fault_, group_;
};

class Divided final : public Boundary {
 public:
  explicit Divided(int ranks) : ranks_(ranks) {}
  Tensor forward(Tensor x, Stream&) override { return x; }
  Tensor backward(Tensor dy, Stream& s) override {
    s.scale(dy, 1.0f / static_cast<float>(ranks_));
    return dy;
  }

 private:
  int ranks_;
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
  void plan(Plan& plan, Mesh& mesh) override {
    plan.chain(std::make_unique<BrokenSums>(fault_, group_));
    if (fault_ == "head") {
      plan.bind({Region::head, Side::enter}, std::make_unique<Divided>(mesh.world_size()), Dim::batch);
    }
  }

 private:
  std::string fault_, group_;
};

}  // namespace

ORTHANT_PLUGIN("broken", Broken)
