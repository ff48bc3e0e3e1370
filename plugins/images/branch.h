// A branch of a block: norm, a map of [T, d], dropout, and the sum with what entered.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <orthant/blocks.h>
#include <orthant/part.h>
#include <orthant/settings.h>

namespace orthant::images {

class Branch {
 public:
  // site: of the dropout's masks.
  Branch(const std::string& norm, std::uint32_t site, std::unique_ptr<PartLayer> map, const Parameters& parameters,
         const Plan& plan)
      : norm_(make_norm(norm, parameters, plan)), map_(std::move(map)), site_(site) {}

  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) const {
    const Tensor y = branch_dropout(ctx, map_->forward(ctx, norm_->forward(ctx, x, saved), saved), site_);
    ctx.stream.add(y, x);
    return y;
  }
  // dy becomes dx.
  void backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
    Tensor d = dy;
    if (ctx.settings().model.dropout > 0) {
      d = ctx.device().empty(dy.dtype(), dy.shape());
      ctx.stream.copy(d, dy);
      d = branch_dropout(ctx, d, site_);
    }
    ctx.stream.add(dy, norm_->backward(ctx, map_->backward(ctx, d, saved), saved));
  }

 private:
  std::unique_ptr<PartLayer> norm_, map_;
  std::uint32_t site_;
};

// A block of two branches.
class TwoBranches final : public Layer {
 public:
  TwoBranches(Branch first, Branch second) : first_(std::move(first)), second_(std::move(second)) {}
  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override {
    return {second_.forward(ctx, first_.forward(ctx, x.front(), saved), saved)};
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    second_.backward(ctx, dy.front(), saved);
    first_.backward(ctx, dy.front(), saved);
    return {dy.front()};
  }

 private:
  Branch first_, second_;
};

// The sites of a link's two branches, behind the embedding's.
inline std::uint32_t branch_site(const Link& link, int branch) {
  return static_cast<std::uint32_t>(2 * link.number + branch);
}

}  // namespace orthant::images
