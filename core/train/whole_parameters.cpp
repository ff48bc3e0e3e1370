#include "core/train/whole_parameters.h"

#include <algorithm>
#include <set>

#include "core/layers/parameter_state.h"
#include "core/train/parameter_ranks.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

// The dimension of `spec` that ranks split, and the axes that do.
struct Split {
  int dimension = 0;
  std::vector<AxisId> axes;
};

Split split_of(const Plan& plan, const ParamSpec& spec) {
  Split split;
  for (int i = 0; i < spec.global.rank(); ++i) {
    const std::vector<AxisId> axes = axes_of_dimension(plan, spec, i);
    if (axes.empty()) {
      continue;
    }
    if (!split.axes.empty()) {
      throw ConfigError(fmt::format("optimizer '{}' needs '{}' whole, but ranks split both of its dimensions",
                                    plan.settings().optimizer.name, spec.name));
    }
    split = {i, axes};
  }
  return split;
}

}  // namespace

// Every rank asks for every group in the table's order, held or not, so that they are made in one order everywhere.
WholeParameters::WholeParameters(Plan& plan, ParamStore& store, Stream& stream) : plan_(plan), store_(store) {
  const Optimizer& optimizer = optimizer_of(plan.settings());
  for (const LayerSpecs& layer : parameters_of(plan.links())) {
    for (const ParamSpec& spec : layer.params) {
      if (spec.frozen || !optimizer.treatment(spec, plan.settings().optimizer).whole) {
        continue;
      }
      Group* const shards = sharing_ranks(plan, spec);
      Group* const slices = slicing_ranks(plan, split_of(plan, spec).axes);
      const auto [group, param] = store.find(spec.name);
      if (group == nullptr) {
        continue;
      }
      WholeParameter& of = whole_[param];
      of = {.param = param, .slices = slices, .order = {}};
      describe(of);
      if (shards != nullptr && shards->size() > 1) {
        shares_[group->id].ranks = shards;
      }
    }
  }
  agree_on_shares(stream);
  agree_on_needs(stream);
}

const WholeParameter* WholeParameters::find(const ParamGroup&, const Param& param) const {
  const auto found = whole_.find(&param);
  return found == whole_.end() ? nullptr : &found->second;
}

void WholeParameters::describe(WholeParameter& of) const {
  if (of.slices == nullptr || of.slices->size() == 1) {
    of.slices = nullptr;
    return;
  }
  const Param& own = *of.param;
  of.dimension = split_of(plan_, own.spec).dimension;
  of.parts = own.spec.global[of.dimension] / own.size[of.dimension];
  bool in_order = of.parts == of.slices->size();
  std::set<std::int64_t> placed;
  for (int i = 0; i < of.slices->size(); ++i) {
    Param other{.spec = own.spec};
    plan_.place(other, of.slices->members()[i]);
    const std::int64_t part = other.offset[of.dimension] / own.size[of.dimension];
    in_order = in_order && part == i;
    if (placed.insert(part).second) {  // neighbours may hold the same (ParamSpec::repeats)
      of.order.push_back({i, part, 1});
    }
  }
  require(static_cast<std::int64_t>(placed.size()) == of.parts, "the ranks [{}] hold {} of the {} slices of '{}'",
          fmt::join(of.slices->members(), " "), placed.size(), of.parts, own.spec.name);
  if (in_order) {
    of.order.clear();
  }
}

// A keeper may have shared out a group on some ranks only, or in its own way: the ranks agree on how to gather it.
void WholeParameters::agree_on_shares(Stream& stream) {
  for (const auto& group : store_.groups()) {
    const auto found = shares_.find(group->id);
    if (found == shares_.end()) {
      continue;
    }
    Group& ranks = *found->second.ranks;
    const bool whole = group->owned_begin == 0 && group->owned_elements >= group->elements;
    const bool block = group->owned_elements * ranks.size() == group->padded &&
                       group->owned_begin == group->owned_elements * ranks.rank();
    std::vector<std::int64_t> differs = {whole ? 0 : 1, block ? 0 : 1};
    all_reduce_values(differs, ReduceOp::max, ranks, stream);
    if (differs[0] == 0) {
      shares_.erase(found);
    } else {
      found->second.blocks = differs[1] == 0;
    }
  }
}

// Ranks that hold slices of a parameter gather it together or not at all.
void WholeParameters::agree_on_needs(Stream& stream) {
  std::vector<Group*> met;
  std::unordered_map<Group*, std::vector<WholeParameter*>> of_group;
  std::unordered_map<Group*, std::vector<std::int64_t>> needs;
  for (const auto& group : store_.groups()) {
    for (const Param& p : group->params) {
      const auto found = whole_.find(&p);
      if (found == whole_.end()) {
        continue;
      }
      WholeParameter& of = found->second;
      const bool owns =
          p.begin < group->owned_begin + group->owned_elements && p.begin + p.elements() > group->owned_begin;
      if (of.slices == nullptr) {
        of.needed = owns;
        continue;
      }
      if (std::find(met.begin(), met.end(), of.slices) == met.end()) {
        met.push_back(of.slices);
      }
      of_group[of.slices].push_back(&of);
      needs[of.slices].push_back(owns ? 1 : 0);
    }
  }
  for (Group* ranks : met) {
    std::vector<std::int64_t>& values = needs[ranks];
    all_reduce_values(values, ReduceOp::max, *ranks, stream);
    for (std::size_t i = 0; i < values.size(); ++i) {
      of_group[ranks][i]->needed = values[i] != 0;
    }
  }
}

Tensor WholeParameters::begin_group(const ParamGroup& group, Stream& s) const {
  const Tensor prepared = s.device().empty(DType::f32, {group.padded});
  s.fill(prepared, 0);
  return prepared;
}

void WholeParameters::end_group(const ParamGroup& group, const Tensor& prepared, Stream& s) const {
  const Share& share = shares_.at(group.id);
  if (share.blocks) {
    share.ranks->all_gather(prepared, prepared.slice(group.owned_begin, {group.owned_elements}), s);
    return;
  }
  if (!group.owner) {  // another rank owns the same range
    s.fill(prepared, 0);
  }
  share.ranks->all_reduce(prepared, ReduceOp::sum, s);
}

Tensor WholeParameters::gather_slices(const WholeParameter& of, const Tensor& slice, Stream& s) const {
  const Param& p = *of.param;
  if (of.slices == nullptr) {
    return slice.view(p.spec.global);
  }
  Device& device = s.device();
  Tensor all = device.empty(DType::f32, {of.slices->size(), p.elements()});
  of.slices->all_gather(all, slice, s);
  if (!of.order.empty()) {
    const Tensor ordered = device.empty(DType::f32, {of.parts, p.elements()});
    s.copy_rows(ordered, all, of.order);
    all = ordered;
  }
  if (of.dimension == 0) {
    return all.view(p.spec.global);
  }
  const Tensor whole = device.empty(DType::f32, {p.size[0], of.parts, p.size[1]});
  s.swap_outer(whole, all.view({of.parts, p.size[0], p.size[1]}));
  return whole.view(p.spec.global);
}

Tensor WholeParameters::own_slice(const WholeParameter& of, const Tensor& whole, Stream& s) const {
  const Param& p = *of.param;
  if (of.slices == nullptr) {
    return whole.view({p.elements()});
  }
  if (of.dimension == 0) {
    return whole.view({p.spec.global.elements()}).slice(p.offset[0] * p.size[1], {p.elements()});
  }
  const Tensor parts = s.device().empty(DType::f32, {of.parts, p.size[0], p.size[1]});
  s.swap_outer(parts, whole.view({p.size[0], of.parts, p.size[1]}));
  return parts.view({p.spec.global.elements()}).slice(p.offset[1] / p.size[1] * p.elements(), {p.elements()});
}

}  // namespace orthant
