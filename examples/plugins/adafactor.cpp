// Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018): a matrix keeps
// R + C numbers where AdamW keeps 2 R C. An optimizer with states over rows, over columns and over whole parameters:
//
//   name = "adafactor" under [optimizer], and under [plugins.adafactor] its keys.
//   lr = 0.01, schedule = "constant" and eps = 1e-15 are the paper's relative steps. What is added to squares is eps^2.
//   weight_decay is decoupled; the paper has none.
#include <orthant/optimizer.h>
#include <orthant/plugin.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

using namespace orthant;

namespace {

enum Method { factored, of_elements };

struct OwnKeys {
  double decay, clip, beta1, least_scale;
  bool relative, scaled;
};

double wide(float x) {
  return static_cast<double>(x);
}

// A number for each element of the slice, where the slice is: an offloaded state is in the host's memory.
Tensor beside(const UpdateSlice& slice, Stream& s) {
  const Shape shape = slice.grad.shape();
  return slice.master.on_host() ? s.device().host_empty(DType::f32, shape) : s.device().empty(DType::f32, shape);
}

// As AdamW's: what both read is declared alike.
struct EpsKeys {
  double eps = 1e-8;
  static const Keys<EpsKeys>& keys() {
    static const auto all = Keys<EpsKeys>().add("eps", &EpsKeys::eps, "Its square is added to squares of gradients.");
    return all;
  }
};

double eps_of(const OptimizerSettings& settings) {
  return read_keys<EpsKeys>(kind_values(settings)).eps;
}

class Adafactor final : public Optimizer {
 public:
  explicit Adafactor(const OwnKeys& keys) : keys_(keys) {}

  std::vector<KindKey> keys() const override { return EpsKeys::keys().declared(); }

  void check(const OptimizerSettings& settings) const override {
    if (eps_of(settings) < 1e-18) {
      throw SettingError(
          "optimizer.eps",
          fmt::format("adafactor adds eps^2 to squares of gradients in single precision, where that of {} "
                      "is 0\nwrite 1e-18 or more; the paper has 1e-15",
                      eps_of(settings)));
    }
  }

  Treatment treatment(const ParamSpec& p, const OptimizerSettings&) const override {
    const bool matrix = p.global.rank() == 2;
    Treatment of{.states = {{.name = "second_moment"}}, .method = of_elements};
    if (matrix) {
      of.method = factored;
      of.states = {{.name = "row", .over = StateOver::rows},
                   {.name = "column", .over = StateOver::columns},
                   {.name = "mean", .over = StateOver::parameter}};
    }
    if (keys_.beta1 > 0) {
      of.states.push_back({.name = "momentum", .code = StateCode::with_sign});
    }
    of.measures = {{.rows = matrix, .columns = matrix, .parameter = matrix, .round = 0},
                   {.parameter = true, .round = 0},
                   {.parameter = true, .round = 1}};
    if (!matrix) {
      of.measures.erase(of.measures.begin());
    }
    return of;
  }

  // Round 0: squares of the gradient, those of a norm are a state of their own, and of the weights. Round 1: of the
  // update.
  void measure(std::span<const Tensor> out, const UpdateSlice& slice, const UpdateStep& step, int round,
               Stream& s) const override {
    const bool matrix = step.method == factored;
    if (round == 1) {
      write_update(out[0], true, slice, step, s);
      return;
    }
    const Tensor squares = matrix ? out[0] : beside(slice, s);
    const double eps = eps_of(step.settings);
    s.apply({.name = "adafactor/squares",
             .inputs = {slice.grad, step.factor, slice.master},
             .outputs = {squares, out.back()},
             .host = [eps](const HostArguments& a) {
               const auto g = a.input<float>(0), factor = a.input<float>(1), x = a.input<float>(2);
               const auto of_gradient = a.output<float>(0), of_weight = a.output<float>(1);
               for (std::size_t i = 0; i < g.size(); ++i) {
                 const double clipped = wide(g[i]) * wide(factor[0]);
                 of_gradient[i] = static_cast<float>(clipped * clipped + eps * eps);
                 of_weight[i] = x[i] * x[i];
               }
             }});
    if (!matrix) {
      average(slice.state[0], squares, 1, step, s);
    }
  }

  // "mean" is the mean of "row", which is that of "column" too.
  void fold(const UpdateSlice& slice, const UpdateStep& step, int round, Stream& s) const override {
    if (round == 0 && step.method == factored) {
      const double rows = wide_size(step.shape[0]), columns = wide_size(step.shape[1]);
      average(slice.state[0], slice.measured[0].rows, columns, step, s);
      average(slice.state[1], slice.measured[0].columns, rows, step, s);
      average(slice.state[2], slice.measured[0].parameter, rows * columns, step, s);
    }
  }

  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    const Tensor change = beside(slice, s);
    write_update(change, false, slice, step, s);
    const std::size_t first = slice.measured.size() - 2;  // of the squares of weights, and behind it of the update
    std::vector<Tensor> changed = {change};
    if (keys_.beta1 > 0) {
      changed.push_back(slice.state.back());
    }
    std::vector<Tensor> read = {slice.master, step.factor, slice.measured[first].parameter,
                                slice.measured[first + 1].parameter};
    read.insert(read.end(), changed.begin(), changed.end());
    const double lr = step.lr * (keys_.relative ? std::min(1.0, 100 / std::sqrt(number_of(step))) : 1.0);
    s.apply({.name = "adafactor/change",
             .inputs = read,
             .outputs = changed,
             .host = [keys = keys_, lr, decay = step.weight_decay,
                      elements = wide_size(step.shape.elements())](const HostArguments& a) {
               if (std::isnan(a.input<float>(1)[0])) {
                 return;
               }
               const auto x = a.input<float>(0);
               const auto u = a.output<float>(0);
               const double of_weights = std::sqrt(wide(a.input<float>(2)[0]) / elements);
               const double of_update = std::sqrt(wide(a.input<float>(3)[0]) / elements);
               const double rate = lr * (keys.scaled ? std::max(keys.least_scale, of_weights) : 1.0);
               const double share = rate / std::max(1.0, of_update / keys.clip);
               for (std::size_t i = 0; i < u.size(); ++i) {
                 double moved = share * wide(u[i]);
                 if (keys.beta1 > 0) {
                   float& m = a.output<float>(1)[i];
                   m = static_cast<float>(keys.beta1 * wide(m) + (1 - keys.beta1) * moved);
                   moved = wide(m);
                 }
                 u[i] = static_cast<float>(moved + rate * decay * wide(x[i]));
               }
             }});
    s.descend(slice.master, slice.weight, change, step.finite, 1.0f, 0.0f);
  }

 private:
  static double wide_size(std::int64_t n) { return static_cast<double>(n); }
  static double number_of(const UpdateStep& step) { return wide_size(step.step + 1); }

  // state = beta2 state + (1 - beta2) sum / n
  void average(const Tensor& state, const Tensor& sum, double n, const UpdateStep& step, Stream& s) const {
    s.apply({.name = "adafactor/average",
             .inputs = {sum, step.factor, state},
             .outputs = {state},
             .host = [beta2 = 1 - std::pow(number_of(step), -keys_.decay), n](const HostArguments& a) {
               const auto x = a.input<float>(0);
               const auto kept = a.output<float>(0);
               for (std::size_t i = 0; i < kept.size() && !std::isnan(a.input<float>(1)[0]); ++i) {
                 kept[i] = static_cast<float>(beta2 * wide(kept[i]) + (1 - beta2) * wide(x[i]) / n);
               }
             }});
  }

  // The gradient by the root of its second moment, which is row * column / mean in a matrix; or the square of that.
  static void write_update(const Tensor& u, bool squared, const UpdateSlice& slice, const UpdateStep& step, Stream& s) {
    const bool matrix = step.method == factored;
    std::vector<Tensor> read = {slice.grad, step.factor};
    read.insert(read.end(), slice.state.begin(), slice.state.begin() + (matrix ? 3 : 1));
    s.apply(
        {.name = "adafactor/update", .inputs = read, .outputs = {u}, .host = [matrix, squared](const HostArguments& a) {
           const auto g = a.input<float>(0), factor = a.input<float>(1), first = a.input<float>(2);
           const auto to = a.output<float>(0);
           const std::size_t columns = matrix ? a.input<float>(3).size() : 1;
           for (std::size_t i = 0; i < to.size(); ++i) {
             const std::size_t row = i / columns;
             const double moment =
                 matrix ? wide(first[row]) * wide(a.input<float>(3)[i - row * columns]) / wide(a.input<float>(4)[0])
                        : wide(first[i]);
             const double found = wide(g[i]) * wide(factor[0]) / std::sqrt(moment);
             to[i] = static_cast<float>(squared ? found * found : found);
           }
         }});
  }

  OwnKeys keys_;
};

class AdafactorPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {number("decay", 0.8, "The second moment of step t is kept by 1 - t^-decay.", 0.01, 1),
            number("clip", 1.0, "The largest root mean square of a parameter's update, before the learning rate.", 1e-6,
                   1e6),
            number("beta1", 0.0, "Decay of a momentum, one number for each element; 0: none is kept.", 0, 0.99999),
            number("least_scale", 1e-3, "The least root mean square of weights that steps are relative to.", 0, 1e6),
            {.name = "scale_parameter",
             .default_value = true,
             .help = "Steps are relative to the root mean square of the parameter's weights."},
            {.name = "relative_step",
             .default_value = true,
             .help = "The learning rate of step t is multiplied by min(1, 100 / sqrt(t))."}};
  }
  void add_to(Catalogue& catalogue, const Table& table) override {
    catalogue.add<Optimizer>(
        "adafactor", "Shazeer and Stern, \"Adafactor: Adaptive Learning Rates with Sublinear Memory Cost\" (2018).",
        std::make_shared<Adafactor>(OwnKeys{.decay = table.number("decay"),
                                            .clip = table.number("clip"),
                                            .beta1 = table.number("beta1"),
                                            .least_scale = table.number("least_scale"),
                                            .relative = table.boolean("relative_step"),
                                            .scaled = table.boolean("scale_parameter")}));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}

 private:
  static KeySpec number(const char* name, double value, const char* help, double least, double most) {
    return {.name = name, .default_value = value, .help = help, .minimum = least, .maximum = most};
  }
};

}  // namespace

ORTHANT_PLUGIN("adafactor", AdafactorPlugin)
