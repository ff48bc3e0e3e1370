#include <orthant/blocks.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/arch/decoder.h"
#include "core/arch/param_specs.h"
#include "core/layers/layer.h"
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
    return moe_.forward(ctx, n, saved);
  }
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    return moe_.backward(ctx, dy, saved);
  }

 private:
  MoeLayer moe_;
};

// The decisions of a block's experts, for as long as one of its forward passes runs.
class Deciding {
 public:
  Deciding(StepSums& sums, ExpertDecisions& decisions) : sums_(sums) { sums_.decisions = &decisions; }
  ~Deciding() { sums_.decisions = nullptr; }
  Deciding(const Deciding&) = delete;
  Deciding& operator=(const Deciding&) = delete;

 private:
  StepSums& sums_;
};

class RecomputedLayer final : public Layer {
 public:
  explicit RecomputedLayer(std::unique_ptr<Layer> block) : block_(std::move(block)) {}

  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override {
    if (!ctx.training || ctx.recompute != Recompute::full) {
      return block_->forward(ctx, x, saved);
    }
    Saved forgotten;
    ExpertDecisions decisions;
    const Deciding deciding(ctx.sums, decisions);
    Bundle y = block_->forward(ctx, x, forgotten);
    std::ranges::copy(x, std::back_inserter(saved.tensors));
    std::ranges::copy(decisions.kept.tensors, std::back_inserter(saved.tensors));
    std::ranges::copy(decisions.kept.plans, std::back_inserter(saved.plans));
    entered_ = x.size();
    decided_ = decisions.kept.tensors.size();
    plans_ = decisions.kept.plans.size();
    return y;
  }

  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    if (ctx.recompute == Recompute::full) {
      ExpertDecisions decisions{.kept = {last(saved.tensors, decided_), last(saved.plans, plans_)}, .again = true};
      const Bundle x = last(saved.tensors, entered_);
      const Deciding deciding(ctx.sums, decisions);
      block_->forward(ctx, x, saved);
    }
    return block_->backward(ctx, dy, saved);
  }

  std::vector<ParamGroup*> grown_in_forward() const override { return block_->grown_in_forward(); }
  const ParamRef* overwritten() const override { return block_->overwritten(); }

 private:
  // Takes the last `count` of them, in their order.
  template <class T>
  static std::vector<T> last(std::vector<T>& from, std::size_t count) {
    require(from.size() >= count, "a block that is computed again has lost what its forward pass kept");
    const auto begin = from.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<T> taken(std::make_move_iterator(begin), std::make_move_iterator(from.end()));
    from.erase(begin, from.end());
    return taken;
  }

  std::unique_ptr<Layer> block_;
  std::size_t entered_ = 0, decided_ = 0, plans_ = 0;  // what forward has kept: as many in every pass
};

}  // namespace

std::unique_ptr<Layer> recomputed(std::unique_ptr<Layer> block) {
  return std::make_unique<RecomputedLayer>(std::move(block));
}

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
