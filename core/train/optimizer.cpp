#include "core/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orthant {

double learning_rate(const OptimizerSettings& o, std::int64_t total_steps, std::int64_t step) {
  const double t = static_cast<double>(step), warmup = static_cast<double>(o.warmup_steps);
  if (step < o.warmup_steps) {
    return o.lr * (t + 1) / (warmup + 1);
  }
  switch (o.schedule) {
    case ScheduleKind::constant: return o.lr;
    case ScheduleKind::inverse_sqrt: return std::max(o.min_lr, o.lr * std::sqrt((warmup + 1) / (t + 1)));
    case ScheduleKind::cosine: break;
  }
  const double end = static_cast<double>(o.decay_steps == 0 ? total_steps : o.decay_steps);
  const double done = end > warmup ? std::clamp((t - warmup) / (end - warmup), 0.0, 1.0) : 1.0;
  return o.min_lr + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (o.lr - o.min_lr);
}

namespace {

void update(ParamGroup& group, std::int64_t begin, std::int64_t end, bool decay, const Settings& settings, double lr,
            std::int64_t step, const Tensor& factor, Stream& stream) {
  const OptimizerSettings& o = settings.optimizer;
  const std::int64_t n = end - begin, at = begin - group.owned_begin;
  const Tensor master = group.master.slice(at, {n}), m = group.moment1.slice(at, {n});
  const Tensor weight = group.owned_weight.slice(at, {n}), grad = group.owned_grad.slice(at, {n});
  const float weight_decay = decay ? static_cast<float>(o.weight_decay) : 0.0f;
  if (o.name == OptimizerKind::sgd) {
    stream.sgd(master, weight, m, grad, factor, {static_cast<float>(lr), static_cast<float>(o.momentum), weight_decay});
    return;
  }
  const double count = static_cast<double>(step + 1);
  stream.adamw(master, weight, m, group.moment2.slice(at, {n}), grad, factor,
               {.lr = static_cast<float>(lr),
                .beta1 = static_cast<float>(o.betas[0]),
                .beta2 = static_cast<float>(o.betas[1]),
                .eps = static_cast<float>(o.eps),
                .weight_decay = weight_decay,
                .correction1 = static_cast<float>(1 - std::pow(o.betas[0], count)),
                .correction2 = static_cast<float>(1 - std::pow(o.betas[1], count))});
}

}  // namespace

void optimizer_step(ParamStore& store, const Plan& plan, std::int64_t step, const Tensor& factor, Stream& stream) {
  const Settings& settings = plan.settings();
  const double lr = learning_rate(settings.optimizer, settings.run.steps, step);
  for (auto& group : store.groups()) {
    const std::int64_t owned_end = group->owned_begin + group->owned_elements;
    // Neighbours with the same decay are updated in one call.
    for (std::size_t i = 0; i < group->params.size();) {
      std::size_t j = i + 1;
      while (j < group->params.size() && group->params[j].spec.decay == group->params[i].spec.decay) {
        ++j;
      }
      const Param& last = group->params[j - 1];
      const std::int64_t begin = std::max(group->params[i].begin, group->owned_begin);
      const std::int64_t end = std::min(last.begin + last.elements(), owned_end);
      if (begin < end) {
        update(*group, begin, end, group->params[i].spec.decay, settings, lr, step, factor, stream);
      }
      i = j;
    }
    for (const auto& keeper : plan.keepers()) {
      keeper->after_step(*group, stream);
    }
  }
}

}  // namespace orthant
