#include "core/layers/adapters.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/arch/trained.h"

namespace orthant {
namespace {

// f32, scaled.
Tensor scaled(const Tensor& t, float scale, Stream& s) {
  const Tensor wide = s.device().empty(DType::f32, t.shape());
  s.cast(wide, t);
  s.scale(wide, scale);
  return wide;
}

}  // namespace

Adapters::Adapters(const ParamStore& store, const Settings& settings) {
  for (const auto& group : store.groups()) {
    Merged merged{.group = group.get(), .parts = {}, .base = {}};
    for (std::size_t i = 0; i < group->params.size(); ++i) {
      const ParamSpec& spec = group->params[i].spec;
      if (spec.adapted) {
        merged.parts.push_back({.w = ParamRef(*group, i),
                                .a = store.ref(adapter_name(spec.name, 'A')),
                                .b = store.ref(adapter_name(spec.name, 'B')),
                                .scale = static_cast<float>(settings.lora.scale_for(spec.name))});
      }
    }
    if (merged.parts.empty()) {
      continue;
    }
    std::set<int> layers;
    for (const Param& p : group->params) {
      layers.insert(p.spec.layers.begin(), p.spec.layers.end());
    }
    for (const int layer : layers) {
      by_layer_[layer].push_back(merged_.size());
    }
    merged_.push_back(std::move(merged));
  }
}

void Adapters::merge(Merged& merged, const StepContext& ctx) {
  Stream& s = ctx.stream;
  ParamGroup& group = *merged.group;
  merged.base = group.weight;
  group.weight = ctx.device().empty(merged.base.dtype(), merged.base.shape());
  s.copy(group.weight, merged.base);
  for (const Adapted& part : merged.parts) {
    Tensor b = scaled(part.b.weight(), part.scale, s);
    if (b.dtype() != merged.base.dtype()) {
      const Tensor narrow = ctx.device().empty(merged.base.dtype(), b.shape());
      s.cast(narrow, b);
      b = narrow;
    }
    s.gemm(part.w.weight(), b, part.a.weight(), {.beta = 1});
  }
}

void Adapters::merge(int layer, const StepContext& ctx) {
  if (const auto found = by_layer_.find(layer); found != by_layer_.end()) {
    for (const std::size_t i : found->second) {
      merge(merged_[i], ctx);
    }
  }
}

void Adapters::restore(int layer) {
  if (const auto found = by_layer_.find(layer); found != by_layer_.end()) {
    for (const std::size_t i : found->second) {
      merged_[i].group->weight = std::exchange(merged_[i].base, Tensor());
    }
  }
}

void Adapters::merge_for_good(const StepContext& ctx) {
  for (Merged& merged : merged_) {
    merge(merged, ctx);
  }
  by_layer_.clear();
}

void Adapters::add_gradients(int layer, const std::vector<ParamGroup*>& groups, const StepContext& ctx) const {
  const auto found = by_layer_.find(layer);
  if (found == by_layer_.end()) {
    return;
  }
  Stream& s = ctx.stream;
  for (const std::size_t i : found->second) {
    const Merged& merged = merged_[i];
    if (std::find(groups.begin(), groups.end(), merged.group) == groups.end()) {
      continue;
    }
    for (const Adapted& part : merged.parts) {
      const Tensor dw = part.w.grad();  // f32 [out, in]
      if (part.a.wants_grad()) {
        s.gemm(part.a.grad(), scaled(part.b.weight(), part.scale, s), dw, {.transpose_a = true, .beta = 1});
      }
      if (part.b.wants_grad()) {
        s.gemm(part.b.grad(), dw, scaled(part.a.weight(), part.scale, s), {.transpose_b = true, .beta = 1});
      }
      if (!merged.group->frozen) {  // the next micro-batch adds to it
        s.fill(dw, 0);
      }
    }
  }
}

}  // namespace orthant
