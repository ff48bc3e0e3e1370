// The smallest useful plugin: an axis of one rank, and a Keeper that scales gradients. Copy it and make it yours.
#include <orthant/plugin.h>

namespace {

using namespace orthant;

// A seam: grad_ready is called once a step for every group of parameters whose gradients are complete on this rank.
class ScaleGradients final : public Keeper {
 public:
  explicit ScaleGradients(float factor) : factor_(factor) {}
  void grad_ready(ParamGroup& group, const HookContext& at) override { at.stream.scale(group.grad, factor_); }
  // Nothing is remembered from step to step, so there is nothing to save.
  std::vector<StateSpec> state(const ParamGroup&) const override { return {}; }

 private:
  float factor_;
};

class Template final : public Plugin {
 public:
  // The keys of [plugins.template]; unknown ones are refused with file, line and column.
  std::vector<KeySpec> keys() const override {
    return {{.name = "factor", .default_value = 1.0, .help = "Every gradient is multiplied by this."}};
  }
  // Phase 1: how many ranks, which dims. An axis that splits nothing has one rank.
  void claim(Mesh& mesh, const Table& config) override {
    mesh.claim({.name = "template", .size = 1});
    factor_ = static_cast<float>(config.number("factor"));
  }
  // What `orthant verify` compares with: one rank without the plugin, or with it.
  Mathematics mathematics() const override { return factor_ == 1 ? Mathematics::unchanged : Mathematics::changed; }
  // Every rank does the same.
  std::int64_t likeness(const Mesh&, int) const override { return 0; }
  // Phase 2: bind seams. From here on the core owns the step.
  void plan(Plan& plan, Mesh&) override { plan.chain(std::make_unique<ScaleGradients>(factor_)); }

 private:
  float factor_ = 1;
};

}  // namespace

ORTHANT_PLUGIN("template", Template)
