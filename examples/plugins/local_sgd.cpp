// Local SGD: workers train a model each on their part of the batch, and average their weights every `every` steps.
//
// Paper: Stich, "Local SGD Converges Fast and Communicates Little" (2019), algorithm 1.
//
// The axis is independent: scales, norms, clipping and shards are a worker's own, its moments stay its own, and
// checkpoints hold every worker's weights. So there is nothing to remember here: the step is that of the run.
#include <orthant/plugin.h>

namespace {

using namespace orthant;

class Average final : public Keeper {
 public:
  Average(Group& workers, std::int64_t every) : workers_(workers), every_(every) {}

  std::vector<StateSpec> state(const ParamGroup&) const override { return {}; }

  // Each rank averages what it owns, with the ranks that own the same in other workers. Whoever shards weights spreads
  // the result within the worker.
  void weight_ready(ParamGroup& group, Change why, const HookContext& at) override {
    if (why != Change::updated || (at.step + 1) % every_ != 0 || workers_.size() == 1 || group.owned_elements == 0) {
      return;
    }
    workers_.all_reduce(group.master, ReduceOp::sum, at.stream);
    at.stream.scale(group.master, 1.0f / static_cast<float>(workers_.size()));
    if (group.owned_weight.dtype() != group.master.dtype()) {  // else they are one
      at.stream.cast(group.owned_weight, group.master);
    }
  }

 private:
  Group& workers_;
  std::int64_t every_;
};

class LocalSgd final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Workers.", .minimum = 1},
            {.name = "every",
             .default_value = std::int64_t{8},
             .help = "Steps that each worker takes by itself before weights are averaged.",
             .minimum = 1}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    size_ = static_cast<int>(config.integer("size"));
    every_ = config.integer("every");
    axis_ = mesh.claim({.name = "local_sgd", .size = size_, .splits = {Dim::batch}, .independent = true});
  }
  Mathematics mathematics() const override { return size_ > 1 ? Mathematics::of_ranks : Mathematics::unchanged; }
  void plan(Plan& plan, Mesh& mesh) override { plan.chain(std::make_unique<Average>(mesh.group(axis_), every_)); }

 private:
  AxisId axis_ = 0;
  int size_ = 1;
  std::int64_t every_ = 1;
};

}  // namespace

ORTHANT_PLUGIN("local_sgd", LocalSgd)
