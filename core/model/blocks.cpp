#include <orthant/blocks.h>

#include <optional>

#include "core/arch/decoder.h"
#include "core/arch/param_specs.h"
#include "core/layers/norm.h"
#include "experts/moe_layer.h"

namespace orthant {
namespace {

const ParamStore& store_of(const Parameters& parameters) {
  return static_cast<const ParamStore&>(parameters);  // there are no others
}

class NormLayer final : public PartLayer {
 public:
  NormLayer(const std::string& stem, const ParamStore& store, const Plan& plan) : norm_(store, stem, plan.settings()) {}
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) const override {
    return norm_.forward(ctx, x, saved);
  }
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    Tensor dx = ctx.device().empty(dy.dtype(), dy.shape());
    ctx.stream.fill(dx, 0);
    norm_.backward(ctx, dx, dy, saved);
    return dx;
  }

 private:
  Norm norm_;
};

class ExpertsLayer final : public PartLayer {
 public:
  ExpertsLayer(const ParamStore& store, Plan& plan, const Link& link) : moe_(store, plan, link) {}
  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    std::optional<Routing> decided;
    return moe_.forward(ctx, n, decided, saved);
  }
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    return moe_.backward(ctx, dy, saved);
  }

 private:
  MoeLayer moe_;
};

}  // namespace

std::vector<ParamSpec> norm_parameters(const Settings& settings, const std::string& stem) {
  return norm_specs(settings, stem);
}

std::unique_ptr<PartLayer> make_norm(const std::string& stem, const Parameters& parameters, const Plan& plan) {
  return std::make_unique<NormLayer>(stem, store_of(parameters), plan);
}

void add_experts(Link& link, const Settings& settings, const std::string& stem) {
  link.router = stem;
  link.flops += routed_flops(settings);
  append_routed(link, settings);
}

std::unique_ptr<PartLayer> make_experts(const Link& link, const Parameters& parameters, Plan& plan) {
  return std::make_unique<ExpertsLayer>(store_of(parameters), plan, link);
}

}  // namespace orthant
