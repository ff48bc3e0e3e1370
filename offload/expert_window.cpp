#include "expert_window.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace orthant::offload {

namespace {

// How much of an expert's load an older step keeps: pins follow a router that learns, and do not follow each step.
constexpr double memory_of_load = 0.9;

std::int64_t elements_of(const std::vector<ExpertRun>& runs) {
  return std::accumulate(runs.begin(), runs.end(), std::int64_t{0},
                         [](std::int64_t sum, const ExpertRun& run) { return sum + run.elements.count; });
}

}  // namespace

ExpertWindow::ExpertWindow(const ParamGroup& group, std::size_t pinned, DType dtype, Lanes& lanes)
    : runs_(runs_of_experts(group)),
      here_(runs_.size(), false),
      load_(runs_.size(), 0.0),
      load_now_(runs_.size(), 0.0),
      pin_of_(runs_.size(), none) {
  require(pinned <= runs_.size(), "'{}' has {} experts on this rank, {} cannot be pinned", group.name, runs_.size(),
          pinned);
  for (std::size_t i = 0; i < pinned; ++i) {
    pins_.push_back({.weights = lanes.device.empty(dtype, {elements_of(runs_[i])})});
    pin_of_[i] = i;
  }
}

void ExpertWindow::bring(const Tensor& window, const std::vector<bool>& experts, Slot& from, Lanes& lanes) {
  const Tensor& host = from.open();
  if (from.ready() != nullptr) {
    lanes.up->wait(from.ready());
  }
  const auto up = [&](const Tensor& to, const ParamGroup::Run& run) {
    lanes.up->upload(to, host.slice(run.begin, {run.count}));
    lanes.traffic.to_device += static_cast<std::int64_t>(to.bytes());
  };
  for (std::size_t e = 0; e < experts.size(); ++e) {
    if (!experts[e] || here_[e]) {
      continue;
    }
    here_[e] = true;
    Pin* const pin = pinned(e) ? &pins_[pin_of_[e]] : nullptr;
    std::int64_t at = 0;
    for (const ExpertRun& run : runs_[e]) {
      const Tensor there = window.slice(run.elements.begin, {run.elements.count});
      if (pin == nullptr) {
        up(there, run.elements);
        continue;
      }
      const Tensor kept = pin->weights.slice(at, {run.elements.count});
      at += run.elements.count;
      if (!pin->fresh) {
        up(kept, run.elements);
      }
      lanes.up->copy(there, kept);
    }
    if (pin != nullptr) {
      pin->fresh = true;
    }
  }
  from.close();
}

void ExpertWindow::chosen(int micro_batch, std::span<const std::int64_t> rows) {
  require(rows.size() == experts(), "rows of {} experts were counted, the group has {}", rows.size(), experts());
  rows_[micro_batch].assign(rows.begin(), rows.end());
  for (std::size_t e = 0; e < rows.size(); ++e) {
    load_now_[e] += static_cast<double>(rows[e]);
  }
}

void ExpertWindow::changed() {
  for (Pin& pin : pins_) {
    pin.fresh = false;
  }
}

void ExpertWindow::end_step() {
  for (std::size_t e = 0; e < experts(); ++e) {
    load_[e] = memory_of_load * load_[e] + std::exchange(load_now_[e], 0.0);
  }
  std::vector<std::size_t> order(experts());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return load_[a] > load_[b]; });
  std::vector<bool> wanted(experts(), false);
  for (std::size_t i = 0; i < pins_.size(); ++i) {
    wanted[order[i]] = true;
  }
  std::vector<std::size_t> free;
  for (std::size_t e = 0; e < experts(); ++e) {
    if (pinned(e) && !wanted[e]) {
      free.push_back(std::exchange(pin_of_[e], none));
    }
  }
  for (std::size_t e = 0; e < experts(); ++e) {
    if (wanted[e] && !pinned(e)) {
      pin_of_[e] = free.back();
      pins_[free.back()].fresh = false;
      free.pop_back();
    }
  }
}

}  // namespace orthant::offload
