#include "core/train/not_finite.h"

#include <algorithm>
#include <cmath>

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

FiniteSearch::FiniteSearch(Plan& plan, Model& model, Load load, Context context, const HookContext& at, Tensor loss)
    : ModelWork(plan, model, std::move(load), std::move(context), at),
      loss_(std::move(loss)),
      squares_(plan.device().empty(DType::f64, {1})) {}

Tensor FiniteSearch::forward(int chunk, int micro_batch, Tensor x) {
  const auto [first, last] = plan_.layers_of_chunk(chunk);
  const StepContext ctx = context(chunk, micro_batch);
  for (int layer = first; layer < last; ++layer) {
    stream_.fill(loss_, 0);
    x = model_.forward(ctx, x, layer, layer + 1);
    // The head returns no x.
    if (layer < first_layer_ && !(x.defined() ? finite(x, squares_, stream_) : finite_value(loss_, stream_))) {
      first_layer_ = layer;
    }
  }
  return x;
}

void refuse_step(const StepReport& report, int first_layer, const GradientNorm& norm, int layers, bool in_backward,
                 Group& ranks, Stream& stream) {
  std::vector<std::int64_t> found(ranks.size(), 0);
  std::int64_t& mine = found[ranks.rank()];
  mine = first_layer;
  all_reduce_values(found, ReduceOp::sum, ranks, stream);
  const auto worst = std::min_element(found.begin(), found.end());
  const int last = layers - 1;
  auto name = [&](std::int64_t layer) {
    return layer == 0 ? std::string("the embedding") : layer == last ? "the head" : fmt::format("layer {}", layer - 1);
  };
  auto rank_at = [&](std::ptrdiff_t i) { return ranks.members()[i]; };
  const std::string what =
      fmt::format("step {} is not applied{}: loss {}, gradient norm {}", report.step + 1,
                  in_backward ? ", but for gradients that were finite by themselves (optimizer.in_backward)" : "",
                  report.loss, report.grad_norm);
  if (*worst != FiniteSearch::none) {
    require_all_alive(ranks, stream);
    fail("{}. The first value that is not finite leaves {} on rank {}, in the forward pass", what, name(*worst),
         rank_at(worst - found.begin()));
  }
  // The backward pass comes to the last layers first, so the latest layer is where it began.
  std::fill(found.begin(), found.end(), 0);  // 1 + twice the latest layer, + 1 for its experts; 0: all are finite
  for (const ParamGroup* group : norm.not_finite()) {
    mine = std::max<std::int64_t>(mine, 1 + 2 * group->layer + (group->experts ? 1 : 0));
  }
  all_reduce_values(found, ReduceOp::sum, ranks, stream);
  require_all_alive(ranks, stream);
  const auto latest = std::max_element(found.begin(), found.end());
  require(*latest > 0, "{}. Every layer's output and gradient is finite by itself: their sum overflows", what);
  fail("{}. The forward pass is finite; the backward pass first overflows in the gradients of {}{} on rank {}", what,
       name((*latest - 1) / 2), (*latest - 1) % 2 == 1 ? " experts" : "", rank_at(latest - found.begin()));
}

}  // namespace orthant
