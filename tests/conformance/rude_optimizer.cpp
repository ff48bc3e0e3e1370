// An optimizer with manners that the conformance suite must notice. [plugins.rude_optimizer] fault:
//   none        right: gradient descent with momentum
//   slices      its step is longer in longer slices
//   nan         shrinks weights, also where a step is not finite
//   remembers   keeps something beside the state that it names
//   names       gives two states one name
//   moody       treats a parameter now in one way, now in another
//   unclipped   takes no notice of the factor that clips
//   unguarded   reads a tensor's memory by itself
//   forgets     replays all missed steps but the last
//   promises    says that it replays, and does not
//   both        says that it replays what it treats as a whole
//   negative    says that a momentum is never negative
//   measures    gives longer slices larger numbers to sum
//   folds       makes a state of a sum, also where a step is not finite
//   stale       leaves the weights that the model computes with as they were
#include <orthant/optimizer.h>
#include <orthant/plugin.h>

#include <atomic>
#include <memory>

using namespace orthant;

namespace {

class RudeOptimizer final : public Optimizer {
 public:
  explicit RudeOptimizer(std::string fault) : fault_(std::move(fault)) {}

  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override {
    if (fault_ == "names") {
      return {.states = {{"speed"}, {"speed"}}, .whole = false, .method = 0, .replays = false};
    }
    if (fault_ == "measures" || fault_ == "folds") {
      return {.states = {{"speed"}, {.name = "size", .over = StateOver::parameter}}, .measures = {{.parameter = true}}};
    }
    return {.states = {{.name = "speed", .code = fault_ == "negative" ? StateCode::positive : StateCode::none}},
            .whole = fault_ == "both",
            .method = fault_ == "moody" ? ++asked_ : 0,
            .replays = fault_ == "forgets" || fault_ == "promises" || fault_ == "both"};
  }
  void measure(std::span<const Tensor> out, const UpdateSlice&, const UpdateStep&, int, Stream& s) const override {
    s.fill(out[0], fault_ == "measures" ? static_cast<double>(out[0].elements()) : 1);
  }
  void fold(const UpdateSlice& slice, const UpdateStep&, int, Stream& s) const override {
    s.add(slice.state[1], slice.measured[0].parameter);
  }
  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    double lr = step.lr;
    if (fault_ == "slices") {
      lr *= 1 + 0.001 * static_cast<double>(slice.grad.elements());
    } else if (fault_ == "remembers") {
      began_ = began_ || step.step == 0;
      lr *= began_ ? 1 : 2;
    } else if (fault_ == "nan") {
      s.scale(slice.master, 0.99f);
    } else if (fault_ == "unclipped") {
      s.sgd(slice.master, slice.weight, slice.state[0], slice.grad, step.finite, {static_cast<float>(lr), 0.9f, 0.0f});
      return;
    } else if (fault_ == "unguarded") {
      const volatile float first = *slice.grad.as<float>();
      (void)first;
    }
    const Tensor weight =
        fault_ == "stale" ? s.device().empty(slice.weight.dtype(), slice.weight.shape()) : slice.weight;
    s.sgd(slice.master, weight, slice.state[0], slice.grad, step.factor, {static_cast<float>(lr), 0.9f, 0.0f});
  }

  void replay(const UpdateSlice& slice, std::span<const UpdateStep> steps, Stream& s) const override {
    if (fault_ == "promises") {
      return Optimizer::replay(slice, steps, s);
    }
    for (const UpdateStep& step : steps.first(steps.size() - 1)) {
      const Sgd missed[] = {{static_cast<float>(step.lr), 0.9f, 0.0f}};
      s.sgd_replay(slice.master, slice.weight, slice.state[0], missed);
    }
  }

 private:
  std::string fault_;
  mutable std::atomic<bool> began_ = false;
  mutable std::atomic<int> asked_ = 0;
};

class RudeOptimizerPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "fault", .default_value = std::string("none"), .help = "What it does wrong."}};
  }
  void add_to(Catalogue& catalogue, const Table& table) override {
    catalogue.add<Optimizer>("rude", "Wrong in one way.", std::make_shared<RudeOptimizer>(table.text("fault")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("rude_optimizer", RudeOptimizerPlugin)
