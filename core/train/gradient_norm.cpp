#include "core/train/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "core/plan/keeper_chain.h"

namespace orthant {

GradientNorm::GradientNorm(Plan& plan, ParamStore& store, Stream& stream)
    : plan_(plan), store_(store), stream_(stream) {
  for (const auto& group : store.groups()) {
    shares_.push_back({.runs = counted_runs(*group)});
  }
  squares_ = plan.device().empty(DType::f64, {static_cast<std::int64_t>(shares_.size())});
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
    if (!p.counted || !group.owner || p.spec.frozen) {
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
    const Tensor place = (&home == &stream_ ? squares_ : on_host_).slice(group.id, {1});
    if (&home != &stream_) {
      home.fill(place, 0);
    }
    for (const Run& run : share.runs) {
      home.sum_squares(place, group.owned_grad.slice(run.begin, {run.count}));
    }
  });
}

// What streams of the host have written comes to the device, neighbours at once.
void GradientNorm::bring() {
  const auto elsewhere = [&](const Share& share) { return share.home != nullptr && share.home != &stream_; };
  std::vector<Stream*> waited;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const std::size_t begin = i;
    for (; i < shares_.size() && elsewhere(shares_[i]); ++i) {
      if (std::find(waited.begin(), waited.end(), shares_[i].home) == waited.end()) {
        waited.push_back(shares_[i].home);
        stream_.wait(waited.back()->record());
      }
    }
    if (i > begin) {
      const std::int64_t first = static_cast<std::int64_t>(begin), count = static_cast<std::int64_t>(i - begin);
      stream_.upload(squares_.slice(first, {count}), on_host_.slice(first, {count}));
    }
  }
  on_host_ = {};
}

void GradientNorm::finish(const Tensor& sum_squares, Group& model, const HookContext& at) {
  for (auto& group : store_.groups()) {
    if (!shares_[static_cast<std::size_t>(group->id)].added && !group->frozen) {
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
    if (!std::isfinite(squares[static_cast<std::size_t>(group->id)])) {
      found.push_back(group.get());
    }
  }
  return found;
}

}  // namespace orthant
