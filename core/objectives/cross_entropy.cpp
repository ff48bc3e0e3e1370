#include "core/objectives/cross_entropy.h"

#include <algorithm>

#include "core/objectives/kinds.h"

namespace orthant {

void cross_entropy(const TokenLosses& of, OutputRows& rows, const StepContext& ctx) {
  const std::int64_t tokens = rows.tokens();
  const Tensor losses = of.each.defined() ? of.each : ctx.device().empty(DType::f32, {tokens});
  for (std::int64_t begin = 0; begin < tokens; begin += rows.chunk()) {
    const std::int64_t count = std::min(rows.chunk(), tokens - begin);
    const Tensor logits = rows.logits(begin, count);
    rows.cross_entropy(losses.rows(begin, count), logits, of.label.rows(begin, count), of.scale);
    rows.learn(begin, logits);
  }
  ctx.stream.sum(of.sum, losses);
}

namespace {

class CrossEntropy final : public Objective {
 public:
  std::string unit(const Settings&) const override { return "nats per token"; }
  void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const override {
    cross_entropy({.label = ctx.batch.label, .sum = in.sums, .scale = ctx.loss_scale}, rows, ctx);
  }
};

}  // namespace

std::shared_ptr<const Objective> make_cross_entropy() {
  return std::make_shared<CrossEntropy>();
}

}  // namespace orthant
