#include "core/train/routing_meter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/arch/decoder.h"

namespace orthant {
namespace {

// Over ln n, so that equal shares have 1. Of no load, or one expert: 0.
double entropy_of_shares(const std::vector<std::int64_t>& load) {
  double sum = 0, weighted = 0;
  for (const std::int64_t n : load) {
    const double x = static_cast<double>(n);
    sum += x;
    weighted += n > 0 ? x * std::log(x) : 0;
  }
  return sum > 0 && load.size() > 1 ? (std::log(sum) - weighted / sum) / std::log(static_cast<double>(load.size())) : 0;
}

// The ranks that have parts of the gradient of a router's weight.
std::vector<int> router_ranks(const Plan& plan) {
  return plan.sum_members(ParamSpec{.name = "router gradients", .global = {1}, .region = Region::router});
}

}  // namespace

RoutingMeter::RoutingMeter(Plan& plan, Group& ranks) : plan_(plan), ranks_(ranks) {
  const Settings& settings = plan.settings();
  const std::vector<const Link*> links = routed_links(plan.links());
  const auto routed = static_cast<std::int64_t>(links.size());
  if (!settings.run.routing_metrics || routed == 0) {
    return;
  }
  tokens_ = &plan.mesh().group_of("router gradients", router_ranks(plan));
  Device& device = plan.device();
  numbers_ = device.empty(DType::f64, {2, routed, 3});
  sums_ = numbers_.rows(0, 1).view({routed, 3});
  squares_ = numbers_.rows(1, 1).view({routed, 3});
  std::vector<bool> here;
  for (const Link* link : links) {
    here.push_back(plan.holds_layer(link->number));
  }
  const std::int64_t held = std::count(here.begin(), here.end(), true);
  const std::int64_t experts = settings.moe.columns(), d = settings.model.d_model;
  by_layer_.resize(here.size());
  if (held == 0) {
    return;
  }
  gradients_ = device.empty(DType::f32, {held, causes, experts, d});
  std::int64_t next = 0;
  for (std::size_t layer = 0; layer < here.size(); ++layer) {
    if (here[layer]) {
      by_layer_[layer] = gradients_.rows(next++, 1).view({causes, experts, d});
    }
  }
}

void RoutingMeter::begin(StepSums& sums, bool measure, Stream& s) {
  measures_ = measure && numbers_.defined();
  sums.routing = measures_ ? sums_ : Tensor();
  sums.router_gradients = measures_ ? by_layer_ : std::vector<Tensor>();
  if (measures_) {
    s.fill(numbers_, 0);
    if (gradients_.defined()) {
      s.fill(gradients_, 0);
    }
  }
}

void RoutingMeter::finish(Stream& s) {
  if (!measures_) {
    return;
  }
  if (!plan_.counts_tokens(Region::router, true)) {
    s.fill(sums_, 0);
  }
  if (gradients_.defined()) {
    if (tokens_->size() > 1) {
      tokens_->all_reduce(gradients_, ReduceOp::sum, s);
    }
    // Every rank of the stage has the same sums by now: one of them counts.
    for (std::size_t layer = 0; plan_.mesh().rank() == plan_.stage_members().front() && layer < by_layer_.size();
         ++layer) {
      for (std::int64_t cause = 0; by_layer_[layer].defined() && cause < causes; ++cause) {
        s.sum_squares(squares_.slice(static_cast<std::int64_t>(layer) * causes + cause, {1}),
                      by_layer_[layer].rows(cause, 1));
      }
    }
  }
  if (ranks_.size() > 1) {
    ranks_.all_reduce(numbers_, ReduceOp::sum, s);
  }
}

void RoutingMeter::read(StepReport& report, std::span<const double> numbers) const {
  const double greatest = std::log(static_cast<double>(std::max<std::int64_t>(plan_.settings().moe.columns(), 2)));
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    const LayerCounters& counters = report.layers[i];
    const double tokens = static_cast<double>(std::max<std::int64_t>(counters.tokens, 1));
    const double* const sums = numbers.data() + i * 3;
    const double* const squares = numbers.data() + (report.layers.size() + i) * 3;
    LayerRouting& to = report.routing.emplace_back();
    to.block = counters.block;
    to.choice_entropy = entropy_of_shares(counters.load);
    to.probability_entropy = sums[0] / tokens / greatest;
    to.dead_experts = std::count(counters.load.begin(), counters.load.end(), 0);
    if (sums[2] > 0) {
      to.margin = sums[1] / sums[2];
    }
    to.grad_norm_loss = std::sqrt(squares[0]);
    to.grad_norm_balance = std::sqrt(squares[1]);
    to.grad_norm_z = std::sqrt(squares[2]);
  }
}

}  // namespace orthant
