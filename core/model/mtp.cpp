#include "core/model/mtp.h"

#include <algorithm>

#include "core/arch/decoder.h"
#include "core/arch/trained.h"
#include "core/layers/head.h"
#include "core/layers/head_parts.h"
#include "core/layers/output_rows.h"
#include "core/objectives/multi_token.h"

namespace orthant {
namespace {

Tensor zeros_like(const StepContext& ctx, const Tensor& t) {
  Tensor zeros = ctx.device().empty(t.dtype(), t.shape());
  ctx.stream.fill(zeros, 0);
  return zeros;
}

const TokensAhead& tokens_ahead_of(const StepContext& ctx) {
  return static_cast<const TokensAhead&>(*ctx.batch.of_objectives.at(1));
}

}  // namespace

MtpLayer::MtpLayer(const ParamStore& store, Plan& plan, const Link& link)
    : depth_(mtp_depth_of(plan.settings(), link.block)),
      passes_(!link.passes.empty()),
      tokens_(store),
      enorm_(store, mtp_stem(depth_) + ".enorm", plan.settings()),
      hnorm_(store, mtp_stem(depth_) + ".hnorm", plan.settings()),
      proj_(store.ref(mtp_stem(depth_) + ".eh_proj.weight")),
      block_(recomputed(std::make_unique<Block>(store, plan, link))),
      norm_(store, mtp_stem(depth_) + ".norm", plan.settings()),
      output_(store, plan) {
  const std::string& matrix = output_.matrix().param().spec.name;
  const auto grows = [&](const Param& p) {
    return p.spec.name == matrix || p.spec.name == adapter_name(matrix, 'A') ||
           p.spec.name == adapter_name(matrix, 'B');
  };
  const std::vector<ParamGroup*> groups = store.groups_of_layer(link.number);
  std::copy_if(groups.begin(), groups.end(), std::back_inserter(grown_),
               [&](const ParamGroup* group) { return std::any_of(group->params.begin(), group->params.end(), grows); });
}

Bundle MtpLayer::forward(const StepContext& ctx, const Bundle& from, Saved& saved) {
  const Tensor& h = from.front();
  const std::vector<TokensAhead::Depth>& ahead = tokens_ahead_of(ctx).depths;
  const std::int64_t d = h.dim(1);
  const Tensor e = enorm_.forward(ctx, tokens_.rows(ctx, ahead.at(static_cast<std::size_t>(depth_)).token), saved);
  const Tensor joined = join_heads(e, hnorm_.forward(ctx, h, saved), 1, d, d, ctx.stream);
  saved.push(joined);
  const Tensor y = block_->forward(ctx, {linear(ctx, joined, proj_.weight())}, saved).front();
  Tensor next = norm_.forward(ctx, y, saved);
  const Tensor n = ctx.cross(head_enter, next);
  if (ctx.sums.objectives.size() > 1) {
    MatrixRows rows(ctx, output_, n);
    const Tensor dn = run_objective(ctx, 1, rows, depth_);
    if (ctx.training) {
      saved.push(ctx.cross_back(head_enter, dn));
    }
  }
  return passes_ ? Bundle{next} : Bundle();
}

Bundle MtpLayer::backward(const StepContext& ctx, const Bundle& dy, Saved& saved) {
  const Tensor dnext = saved.pop();
  if (!dy.empty()) {
    ctx.stream.add(dnext, dy.front());
  }
  const Tensor dblock = zeros_like(ctx, dnext);
  norm_.backward(ctx, dblock, dnext, saved);
  const Tensor dx = block_->backward(ctx, {dblock}, saved).front();
  const Tensor joined = saved.pop();
  const std::int64_t d = dx.dim(1);
  const auto [de, dh] =
      split_heads(linear_backward(ctx, dx, joined, proj_.weight(), proj_.wanted_grad()), 1, d, d, ctx.stream);
  Tensor before = zeros_like(ctx, dh);
  hnorm_.backward(ctx, before, dh, saved);
  const Tensor dtokens = zeros_like(ctx, de);
  enorm_.backward(ctx, dtokens, de, saved);
  tokens_.add_gradient(ctx, dtokens, tokens_ahead_of(ctx).depths.at(static_cast<std::size_t>(depth_)).token);
  return {before};
}

}  // namespace orthant
