#include "core/train/not_finite.h"

#include <algorithm>
#include <cmath>

#include "core/arch/decoder.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

bool finite_value(const Tensor& f64, Stream& stream) {
  double value = 0;
  stream.download(&value, f64);
  return std::isfinite(value);
}

// squares: f64 [1], overwritten.
bool finite(const Tensor& t, const Tensor& squares, Stream& stream) {
  stream.fill(squares, 0);
  stream.sum_squares(squares, t);
  return finite_value(squares, stream);
}

}  // namespace

FiniteSearch::FiniteSearch(Plan& plan, Model& model, const Parts& parts, const HookContext& at)
    : TrainingWork(plan, model, parts, at), loss_(parts.sums.loss), squares_(plan.device().empty(DType::f64, {1})) {}

StepContext FiniteSearch::context(const DeviceBatch& batch, int chunk, int micro_batch) {
  StepContext ctx = TrainingWork::context(batch, chunk, micro_batch);
  ctx.training = false;
  return ctx;
}

Bundle FiniteSearch::forward(int chunk, int micro_batch, Bundle x) {
  const auto [first, last] = plan_.layers_of_chunk(chunk);
  const StepContext ctx = context_of(chunk, micro_batch);
  for (int layer = first; layer < last; ++layer) {
    stream_.fill(loss_, 0);
    x = model_.forward(ctx, x, layer, layer + 1);
    const bool sound = std::all_of(x.begin(), x.end(), [&](const Tensor& t) { return finite(t, squares_, stream_); });
    if (layer < first_layer_ && !(sound && finite_value(loss_, stream_))) {  // what has no objective has no loss
      first_layer_ = layer;
    }
  }
  return x;
}

FiniteRouting::FiniteRouting(const Plan& plan)
    : settings_(plan.settings()), routed_(routed_links(plan.links())), losses_(plan.device().empty(DType::f64, {2})) {}

void FiniteRouting::decided(const StepContext& ctx, int routed, const GateInput& from, const GateChoice& made) {
  const int layer = routed_.at(static_cast<std::size_t>(routed))->number;
  if (ctx.training || layer >= first_layer_) {
    return;
  }
  const Gate& gate = gate_of(settings_);
  GateConfig config = gate.config(settings_);
  config.group_tokens = from.logits.dim(0) / made.share.dim(0);  // all tokens with moe.balance_over = "batch"
  Stream& s = ctx.stream;
  s.fill(losses_, 0);
  gate.losses(losses_.slice(0, {1}), losses_.slice(1, {1}), made, from, config, s);
  if (!finite_value(losses_.slice(0, {1}), s) || !finite_value(losses_.slice(1, {1}), s)) {
    first_layer_ = layer;
  }
}

void refuse_step(const StepReport& report, const FoundNotFinite& first, const GradientNorm& norm, const Plan& plan,
                 Group& ranks, Stream& stream) {
  std::vector<std::int64_t> found(ranks.size(), 0);
  std::int64_t& mine = found[ranks.rank()];
  const auto exchange = [&](std::int64_t own) {
    std::fill(found.begin(), found.end(), 0);
    mine = own;
    all_reduce_values(found, ReduceOp::sum, ranks, stream);
  };
  exchange(first.layer);
  const auto worst = std::min_element(found.begin(), found.end());
  auto name = [&](std::int64_t layer) { return told(plan.links().at(static_cast<std::size_t>(layer))); };
  auto rank_at = [&](std::ptrdiff_t i) { return ranks.members()[i]; };
  const bool routed = std::isfinite(report.aux_loss) && std::isfinite(report.z_loss);
  const std::string what =
      fmt::format("step {} is not applied{}: loss {}, {}", report.step + 1,
                  plan.settings().optimizer.in_backward
                      ? ", but for gradients that were finite by themselves (optimizer.in_backward)"
                      : "",
                  report.loss,
                  routed ? fmt::format("gradient norm {}", report.grad_norm)
                         : fmt::format("balance loss {}, router's z loss {}", report.aux_loss, report.z_loss));
  if (*worst != FiniteSearch::none) {
    require_all_alive(ranks, stream);
    fail("{}. The first value that is not finite leaves {} on rank {}, in the forward pass", what, name(*worst),
         rank_at(worst - found.begin()));
  }
  exchange(first.router);
  if (const auto router = std::min_element(found.begin(), found.end()); *router != FiniteSearch::none) {
    require_all_alive(ranks, stream);
    fail("{}. The first such loss that is not finite is that of the router of {} on rank {}", what, name(*router),
         rank_at(router - found.begin()));
  }
  // The backward pass comes to the last layers first, so the latest layer is where it began.
  std::int64_t own = 0;  // 1 + twice the latest layer, + 1 for its experts; 0: all are finite
  for (const ParamGroup* group : norm.not_finite()) {
    own = std::max<std::int64_t>(own, 1 + 2 * group->layer + (group->experts ? 1 : 0));
  }
  exchange(own);
  require_all_alive(ranks, stream);
  const auto latest = std::max_element(found.begin(), found.end());
  require(*latest > 0, "{}. Every layer's output and gradient is finite by itself: their sum overflows", what);
  fail("{}. The forward pass is finite; the backward pass first overflows in the gradients of {}{} on rank {}", what,
       name((*latest - 1) / 2), (*latest - 1) % 2 == 1 ? " experts" : "", rank_at(latest - found.begin()));
}

}  // namespace orthant
