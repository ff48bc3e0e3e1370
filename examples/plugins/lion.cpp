// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023): the sign of a momentum, which alone it
// keeps. An optimizer of one's own, with keys of its own, made of operations that every device has:
//
//   name = "lion" under [optimizer], and under [plugins.lion] its betas.
#include <orthant/optimizer.h>
#include <orthant/plugin.h>

#include <memory>

using namespace orthant;

namespace {

struct LionKeys {
  double eps = 1e-8;  // as AdamW's: what both read is declared alike
  static const Keys<LionKeys>& keys() {
    static const auto all = Keys<LionKeys>().add("eps", &LionKeys::eps, "Keeps rounding from turning signs.");
    return all;
  }
};

class Lion final : public Optimizer {
 public:
  Lion(double beta1, double beta2) : beta1_(beta1), beta2_(beta2) {}

  std::vector<KindKey> keys() const override { return LionKeys::keys().declared(); }
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override {
    return {.states = {{"direction"}}, .whole = false, .method = 0};
  }

  // The paper's c = beta1 m + (1 - beta1) g, m = beta2 m + (1 - beta2) g. What is kept is M = m / (1 - beta2): then
  // M = beta2 M + g is a step of SGD's momentum at rate 0, and so is c, but for a factor that its sign does not know.
  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    Device& device = s.device();
    const Shape n = slice.grad.shape();
    const Tensor &kept = slice.state[0], c = device.empty(DType::f32, n);
    s.copy(c, kept);
    const double carried = beta1_ * (1 - beta2_) / (1 - beta1_);
    s.sgd(slice.master, slice.weight, c, slice.grad, step.factor, {0.0f, static_cast<float>(carried), 0.0f});
    s.sgd(slice.master, slice.weight, kept, slice.grad, step.factor, {0.0f, static_cast<float>(beta2_), 0.0f});
    // An Adam that remembers nothing: c / (|c| + eps). eps keeps rounding from turning signs (see `verify`).
    const Tensor first = device.empty(DType::f32, n), second = device.empty(DType::f32, n);
    s.fill(first, 0);
    s.fill(second, 0);
    s.adamw(slice.master, slice.weight, first, second, c, step.finite,  // c has been multiplied by the factor
            {.lr = static_cast<float>(step.lr),
             .beta1 = 0,
             .beta2 = 0,
             .eps = static_cast<float>(read_keys<LionKeys>(kind_values(step.settings)).eps),
             .weight_decay = static_cast<float>(step.weight_decay),
             .correction1 = 1,
             .correction2 = 1});
  }

 private:
  double beta1_, beta2_;
};

// It claims no axis and binds no seam: it only adds to the catalogue.
class LionPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {beta("beta1", 0.9, "Share of the momentum in the update."), beta("beta2", 0.99, "Decay of the momentum.")};
  }
  void add_to(Catalogue& catalogue, const Table& table) override {
    catalogue.add<Optimizer>("lion", "Chen et al., \"Symbolic Discovery of Optimization Algorithms\" (2023).",
                             std::make_shared<Lion>(table.number("beta1"), table.number("beta2")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}

 private:
  static KeySpec beta(const char* name, double value, const char* help) {
    KeySpec key{.name = name, .default_value = value, .help = help};
    key.minimum = 0;
    key.maximum = 0.99999;
    return key;
  }
};

}  // namespace

ORTHANT_PLUGIN("lion", LionPlugin)
