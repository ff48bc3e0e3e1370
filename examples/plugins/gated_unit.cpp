// A feed-forward network of one's own: y = (gelu(x G') * (x U')) D' (Shazeer, "GLU Variants Improve Transformer").
//
//   [model]
//   ffn = "gated_unit"
//   [plugins.gated_unit]
//
// It claims no ranks. Its channels are split wherever an axis splits Dim::ffn; nothing here knows which.
// [plugins.gated_unit] fault plants a mistake, for the tests of `orthant plugins --check`; "relu" is none: relu stands
// in gelu's place then, whose kinks no check may take for a wrong gradient.
#include <orthant/part.h>
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include <memory>
#include <string>
#include <vector>

namespace {

using namespace orthant;

constexpr Site enter{Region::ffn, Side::enter}, leave{Region::ffn, Side::leave};

class Unit final : public PartLayer {
 public:
  Unit(const Parameters& parameters, const std::string& stem, std::string fault)
      : gate_(parameters.ref(stem + ".gate.weight")),
        up_(parameters.ref(stem + ".up.weight")),
        down_(parameters.ref(stem + ".down.weight")),
        fault_(std::move(fault)) {}

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    const Tensor x = ctx.cross(enter, n);             // [T, d]
    const Tensor g = linear(ctx, x, gate_.weight());  // [T, f], as u and a
    const Tensor u = linear(ctx, x, up_.weight());
    const Tensor a = gated(ctx, g, u);
    for (const Tensor& t : {x, g, u}) {
      saved.push(t);
    }
    const Tensor y = linear(ctx, a, down_.weight());
    return fault_ == "no_leave" ? y : ctx.cross(leave, y);
  }

  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    const Tensor u = saved.pop(), g = saved.pop(), x = saved.pop();
    const Tensor dy_here = ctx.cross_back(leave, dy);
    const Tensor da = linear_backward(ctx, dy_here, gated(ctx, g, u), down_.weight(), down_.grad());
    // a = gelu(g) u: du = da gelu(g), dg = da u gelu'(g).
    const Tensor du = activated(ctx, g), dg = ctx.device().empty(g.dtype(), g.shape());
    ctx.stream.multiply(du, da);
    if (fault_ != "no_product") {
      ctx.stream.multiply(da, u);
    }
    ctx.stream.activation_backward(dg, da, g, activation());
    const Tensor dx = linear_backward(ctx, dg, x, gate_.weight(), gate_.grad());
    ctx.stream.add(dx, linear_backward(ctx, du, x, up_.weight(), up_.grad()));
    return ctx.cross_back(enter, dx);
  }

 private:
  Activation activation() const { return fault_ == "relu" ? Activation::relu : Activation::gelu; }
  Tensor activated(const StepContext& ctx, const Tensor& g) const {
    Tensor a = ctx.device().empty(g.dtype(), g.shape());
    ctx.stream.activation(a, g, activation());
    return a;
  }
  Tensor gated(const StepContext& ctx, const Tensor& g, const Tensor& u) const {
    Tensor a = activated(ctx, g);
    ctx.stream.multiply(a, u);
    return a;
  }

  ParamRef gate_, up_, down_;  // [f, d], [f, d], [d, f]
  std::string fault_;
};

class GatedUnit final : public FfnPart {
 public:
  explicit GatedUnit(std::string fault) : fault_(std::move(fault)) {}

  std::vector<ParamSpec> parameters(const PartPlace& place) const override {
    const std::int64_t d = place.settings.model.d_model, f = d_ff_of(place.settings);
    auto spec = [&](const char* name, std::int64_t rows, std::int64_t columns, int split, float std) {
      ParamSpec p{.name = place.stem + name, .global = {rows, columns}, .region = Region::ffn, .std = std};
      p.split[split] = Dim::ffn;
      return p;
    };
    const float std = static_cast<float>(place.settings.model.init_std);
    std::vector<ParamSpec> specs = {spec(".gate.weight", f, d, 0, std), spec(".up.weight", f, d, 0, std),
                                    spec(".down.weight", d, f, 1, residual_std(place.settings))};
    if (fault_ == "twice") {
      specs.push_back(specs.front());
    }
    if (fault_ == "whole") {
      specs[0].split[0].reset();
    }
    return specs;
  }

  double flops(const Settings& settings, int) const override {
    return fault_ == "free" ? 0 : 6 * static_cast<double>(settings.model.d_model * d_ff_of(settings));
  }

  std::unique_ptr<PartLayer> make(const PartPlace& place, const Parameters& parameters, const Plan&) const override {
    return fault_ == "nothing" ? nullptr : std::make_unique<Unit>(parameters, place.stem, fault_);
  }

 private:
  std::string fault_;
};

class GatedUnitPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "fault", .default_value = std::string(), .help = "A mistake to plant; empty: none."}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    catalogue.add<FfnPart>("gated_unit", "Gated by a GELU (Shazeer, \"GLU Variants Improve Transformer\").",
                           std::make_shared<GatedUnit>(config.text("fault")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("gated_unit", GatedUnitPlugin)
