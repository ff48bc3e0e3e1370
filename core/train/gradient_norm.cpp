#include "core/train/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "core/plan/keeper_chain.h"

namespace orthant {

GradientNorm::GradientNorm(Plan& plan, ParamStore& store, Stream& stream)
    : plan_(plan), store_(store), stream_(stream) {
  std::int64_t places = 0;
  for (const auto& group : store.groups()) {
    shares_.push_back({.runs = counted_runs(*group), .first = places});
    places += shares_.back().places();
  }
  squares_ = plan.device().empty(DType::f64, {std::max<std::int64_t>(places, 1)});
}

// Neighbours that are counted alike are taken in one pass, within what this rank owns.
std::vector<GradientNorm::Run> GradientNorm::counted_runs(const ParamGroup& group) {
  const std::int64_t end = group.owned_begin + group.owned_elements;
  std::vector<Run> runs;
  std::int64_t run_begin = 0, run_end = 0;
  const auto flush = [&] {
    const std::int64_t begin = std::max(run_begin, group.owned_begin), stop = std::min(run_end, end);
    if (begin < stop) {
      runs.push_back({begin - group.owned_begin, stop - begin});
    }
  };
  for (const Param& p : group.params) {
    if (!p.counted || !group.owner) {
      continue;
    }
    if (p.begin != run_end) {
      flush();
      run_begin = p.begin;
    }
    run_end = p.begin + p.elements();
  }
  flush();
  return runs;
}

void GradientNorm::begin_step() {
  stream_.fill(squares_, 0);
  on_host_ = {};  // of a step that failed
  for (Share& share : shares_) {
    share.added = false;
    share.home = nullptr;
  }
}

void GradientNorm::add(ParamGroup& group, const HookContext& at) {
  Share& share = shares_[static_cast<std::size_t>(group.id)];
  share.added = true;
  with_held(plan_.keepers(), group, Held::whole_grad, at, [&](Stream& home) {
    plan_.keepers().whole_grads(group, at);
    if (share.runs.empty()) {
      return;
    }
    share.home = &home;
    if (&home != &stream_ && !on_host_.defined()) {
      on_host_ = plan_.device().host_empty(DType::f64, squares_.shape());
    }
    const Tensor places = (&home == &stream_ ? squares_ : on_host_).slice(share.first, {share.places()});
    if (&home != &stream_) {
      home.fill(places, 0);
    }
    for (std::size_t i = 0; i < share.runs.size(); ++i) {
      const Run& run = share.runs[i];
      home.sum_squares(places.slice(static_cast<std::int64_t>(i), {1}), group.owned_grad.slice(run.begin, {run.count}));
    }
  });
}

// What streams of the host have written comes to the device, neighbours at once.
void GradientNorm::bring() {
  const auto elsewhere = [&](const Share& share) { return share.home != nullptr && share.home != &stream_; };
  std::vector<Stream*> waited;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (!elsewhere(shares_[i])) {
      continue;
    }
    const std::int64_t begin = shares_[i].first;
    std::int64_t end = begin;
    for (; i < shares_.size() && (shares_[i].runs.empty() || elsewhere(shares_[i])); ++i) {
      end = shares_[i].first + shares_[i].places();
      if (elsewhere(shares_[i]) && std::find(waited.begin(), waited.end(), shares_[i].home) == waited.end()) {
        waited.push_back(shares_[i].home);
        stream_.wait(waited.back()->record());
      }
    }
    stream_.upload(squares_.slice(begin, {end - begin}), on_host_.slice(begin, {end - begin}));
  }
  on_host_ = {};
}

void GradientNorm::finish(const Tensor& sum_squares, Group& model, const HookContext& at) {
  for (auto& group : store_.groups()) {
    if (!shares_[static_cast<std::size_t>(group->id)].added) {
      add(*group, at);
    }
  }
  bring();
  stream_.fill(sum_squares, 0);
  stream_.sum(sum_squares, squares_);
  if (model.size() > 1) {
    model.all_reduce(sum_squares, ReduceOp::sum, at.stream);
  }
}

std::vector<const ParamGroup*> GradientNorm::not_finite() const {
  std::vector<double> squares(static_cast<std::size_t>(squares_.elements()));
  stream_.download(squares.data(), squares_);
  std::vector<const ParamGroup*> found;
  for (const auto& group : store_.groups()) {
    const Share& share = shares_[static_cast<std::size_t>(group->id)];
    const auto first = squares.begin() + share.first;
    if (!std::all_of(first, first + share.places(), [](double value) { return std::isfinite(value); })) {
      found.push_back(group.get());
    }
  }
  return found;
}

}  // namespace orthant
