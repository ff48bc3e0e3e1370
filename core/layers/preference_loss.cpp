#include "core/layers/preference_loss.h"

#include <array>
#include <utility>

#include "core/layers/layer.h"

namespace orthant {

Group* pair_group(Plan& plan) {
  const std::vector<AxisId> axes = plan.axes_of(Dim::position, Region::head);
  const std::vector<int> members = plan.mesh().members(axes, plan.mesh().rank());
  return members.size() == 1 ? nullptr : &plan.group("pairs", members);
}

std::vector<AnswerSums> PairLoss::answers(const StepContext& ctx, const Tensor& loss, const Tensor& reference) const {
  const std::vector<std::int32_t>& answer_of = ctx.batch.answer;
  require(answer_of.size() == static_cast<std::size_t>(loss.dim(0)),
          "internal error: a batch of {} tokens says of {} which answer they count in", loss.dim(0), answer_of.size());
  const Tensor wide = ctx.device().empty(DType::f64, {2, loss.dim(0)});
  ctx.stream.cast(wide.rows(0, 1), loss);
  ctx.stream.cast(wide.rows(1, 1), reference);
  std::vector<double> of_both(2 * answer_of.size());
  ctx.stream.download(of_both.data(), wide);
  std::vector<AnswerSums> sums(static_cast<std::size_t>(2 * ctx.batch.sequences));
  for (std::size_t t = 0; t < answer_of.size(); ++t) {
    if (answer_of[t] >= 0) {
      AnswerSums& of = sums[static_cast<std::size_t>(answer_of[t])];
      of.model -= of_both[t];
      of.reference -= of_both[answer_of.size() + t];
      of.tokens += 1;
    }
  }
  if (parts_ != nullptr) {
    static_assert(sizeof(AnswerSums) == 3 * sizeof(double));
    const Tensor all = ctx.device().empty(DType::f64, {static_cast<std::int64_t>(3 * sums.size())});
    ctx.stream.upload(all, sums.data());
    parts_->all_reduce(all, ReduceOp::sum, ctx.stream);
    ctx.stream.download(sums.data(), all);
  }
  return sums;
}

Tensor PairLoss::operator()(const StepContext& ctx, const Tensor& loss, const Tensor& reference) const {
  const std::vector<AnswerSums> sums = answers(ctx, loss, reference);
  std::vector<double> slope(sums.size());
  std::array<double, pair_sums + 1> found{};  // and the loss
  const auto add = [&](PairSum to, double value) { found[static_cast<std::size_t>(to)] += value; };
  for (std::size_t a = 0; a < sums.size(); a += 2) {
    const AnswerSums &chosen = sums[a], &rejected = sums[a + 1];
    if (chosen.tokens == 0 || rejected.tokens == 0) {  // a sequence of padding
      continue;
    }
    const JudgedPair pair = judge(chosen, rejected, ctx.settings().preference);
    add(PairSum::right, pair.chosen.reward > pair.rejected.reward ? 1 : 0);
    add(PairSum::reward_chosen, pair.chosen.reward);
    add(PairSum::reward_rejected, pair.rejected.reward);
    add(PairSum::logp_chosen, pair.chosen.logp);
    add(PairSum::logp_rejected, pair.rejected.logp);
    add(PairSum::nll, -chosen.model);
    add(PairSum::reference, chosen.reference + rejected.reference);
    found.back() += pair.loss;
    const double scale = static_cast<double>(ctx.loss_scale), nll_scale = static_cast<double>(ctx.nll_scale);
    slope[a] = nll_scale - scale * pair.chosen.slope;
    slope[a + 1] = -scale * pair.rejected.slope;
  }
  // The ranks that hold parts of these sequences have all found the same: one of them counts it.
  if (ctx.plan.counts_tokens(Region::head, true)) {
    const Tensor counted = ctx.device().empty(DType::f64, {pair_sums + 1});
    ctx.stream.upload(counted, found.data());
    for (std::int64_t i = 0; i < pair_sums; ++i) {
      ctx.stream.sum(ctx.sums.preference.slice(i, {1}), counted.slice(i, {1}));
    }
    ctx.stream.sum(ctx.sums.loss, counted.slice(pair_sums, {1}));
  }
  if (!ctx.training) {
    return {};
  }
  std::vector<float> weight;
  weight.reserve(ctx.batch.answer.size());
  for (const std::int32_t answer : ctx.batch.answer) {
    weight.push_back(answer < 0 ? 0 : static_cast<float>(slope[static_cast<std::size_t>(answer)]));
  }
  const Tensor weights = ctx.device().empty(DType::f32, {static_cast<std::int64_t>(weight.size()), 1});
  ctx.stream.upload(weights, weight.data());
  return weights;
}

}  // namespace orthant
