// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes", 2020): the step of
// AdamW, of each parameter as long as its weights. An optimizer that needs one number of the whole parameter, however
// it is divided:
//
//   name = "lamb" under [optimizer], with betas, eps and weight_decay. A table [plugins.lamb] loads it.
#include <orthant/optimizer.h>
#include <orthant/plugin.h>

#include <array>
#include <cmath>
#include <memory>

using namespace orthant;

namespace {

double wide(float x) {
  return static_cast<double>(x);
}

// A number for each element of the slice, where the slice is: an offloaded state is in the host's memory.
Tensor beside(const UpdateSlice& slice, Stream& s) {
  const Shape shape = slice.grad.shape();
  return slice.master.on_host() ? s.device().host_empty(DType::f32, shape) : s.device().empty(DType::f32, shape);
}

// As AdamW's: keys that several optimizers read are declared alike.
struct LambKeys {
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  static const Keys<LambKeys>& keys() {
    static const auto all = Keys<LambKeys>()
                                .add("betas", &LambKeys::betas, "Decay of the two moments.")
                                .add("eps", &LambKeys::eps, "Added to the root of the second moment.");
    return all;
  }
};

LambKeys keys_of(const UpdateStep& step) {
  return read_keys<LambKeys>(kind_values(step.settings));
}

class Lamb final : public Optimizer {
 public:
  std::vector<KindKey> keys() const override { return LambKeys::keys().declared(); }
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override {
    return {
        .states = {{.name = "moment1", .code = StateCode::with_sign}, {.name = "moment2", .code = StateCode::positive}},
        .measures = {{.parameter = true}, {.parameter = true}}};
  }

  // The squares of weights and of Adam's step, whose moments change here.
  void measure(std::span<const Tensor> out, const UpdateSlice& slice, const UpdateStep& step, int,
               Stream& s) const override {
    const LambKeys keys = keys_of(step);
    s.apply({.name = "lamb/moments",
             .inputs = {slice.grad, step.factor, slice.master, slice.state[0], slice.state[1]},
             .outputs = {slice.state[0], slice.state[1], out[0]},
             .host = [beta1 = keys.betas[0], beta2 = keys.betas[1]](const HostArguments& a) {
               const auto g = a.input<float>(0), factor = a.input<float>(1), x = a.input<float>(2);
               const auto m = a.output<float>(0), v = a.output<float>(1), square = a.output<float>(2);
               for (std::size_t i = 0; i < g.size(); ++i) {
                 square[i] = x[i] * x[i];
                 if (!std::isnan(factor[0])) {
                   const double clipped = wide(g[i]) * wide(factor[0]);
                   m[i] = static_cast<float>(beta1 * wide(m[i]) + (1 - beta1) * clipped);
                   v[i] = static_cast<float>(beta2 * wide(v[i]) + (1 - beta2) * clipped * clipped);
                 }
               }
             }});
    write_step(out[1], true, slice, step, s);
  }

  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    const Tensor change = beside(slice, s);
    write_step(change, false, slice, step, s);
    s.apply({.name = "lamb/trust",
             .inputs = {slice.measured[0].parameter, slice.measured[1].parameter, change},
             .outputs = {change},
             .host = [](const HostArguments& a) {
               const double weights = std::sqrt(wide(a.input<float>(0)[0])),
                            steps = std::sqrt(wide(a.input<float>(1)[0]));
               const double trust = weights > 0 && steps > 0 ? weights / steps : 1.0;
               for (float& x : a.output<float>(0)) {
                 x = static_cast<float>(trust * wide(x));
               }
             }});
    s.descend(slice.master, slice.weight, change, step.finite, static_cast<float>(step.lr), 0.0f);
  }

 private:
  // Adam's, or its square.
  static void write_step(const Tensor& to, bool squared, const UpdateSlice& slice, const UpdateStep& step, Stream& s) {
    const double t = static_cast<double>(step.step + 1);
    const LambKeys keys = keys_of(step);
    const double first = 1 - std::pow(keys.betas[0], t), second = 1 - std::pow(keys.betas[1], t);
    s.apply({.name = "lamb/step",
             .inputs = {slice.master, slice.state[0], slice.state[1]},
             .outputs = {to},
             .host = [first, second, squared, eps = keys.eps, decay = step.weight_decay](const HostArguments& a) {
               const auto x = a.input<float>(0), m = a.input<float>(1), v = a.input<float>(2);
               const auto out = a.output<float>(0);
               for (std::size_t i = 0; i < out.size(); ++i) {
                 const double found = wide(m[i]) / first / (std::sqrt(wide(v[i]) / second) + eps) + decay * wide(x[i]);
                 out[i] = static_cast<float>(squared ? found * found : found);
               }
             }});
  }
};

class LambPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<Optimizer>("lamb", "You et al., \"Large Batch Optimization for Deep Learning\" (2020).",
                             std::make_shared<Lamb>());
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("lamb", LambPlugin)
