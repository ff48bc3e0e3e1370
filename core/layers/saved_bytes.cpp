#include "core/layers/saved_bytes.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/layers/parameter_state.h"

namespace orthant {
namespace {

// Of a parameter, elements that ranks write together.
struct Item {
  std::int64_t elements = 0, bytes_each = 0;
};
using Items = std::map<std::string, Item>;  // by parameter, in the order in which they are cut

std::int64_t bytes_of_element(const ParamGroup& group, const Param& p, const Settings& settings) {
  std::int64_t bytes = size_of(DType::f32);  // of the weight
  for (const OptimizerState& state : treatment_of(p.spec, settings).states) {
    if (state.over == StateOver::elements) {
      bytes += static_cast<std::int64_t>(size_of(state.code == StateCode::none ? state.dtype : DType::f32));
    }
  }
  for (const PluginState& state : group.plugin_states) {
    bytes += state.kind == StateKind::owned ? size_of(DType::f32) : 0;
  }
  return bytes;
}

// Of `items`, cut into `ranks` runs of equally many elements, the run with most bytes: any rank may have it.
std::int64_t largest_run(const Items& items, std::int64_t ranks) {
  std::int64_t total = 0, bytes = 0;
  for (const auto& [name, item] : items) {
    total += item.elements;
    bytes = std::max(bytes, item.bytes_each);
  }
  const std::int64_t size = (total + ranks - 1) / ranks;
  const bool alike =
      std::all_of(items.begin(), items.end(), [&](const auto& entry) { return entry.second.bytes_each == bytes; });
  if (alike || ranks == 1) {
    std::int64_t sum = 0;
    for (const auto& [name, item] : items) {
      sum += item.elements * item.bytes_each;
    }
    return ranks == 1 ? sum : size * bytes;
  }
  // The bytes of the first `end` elements, for ascending ends.
  std::int64_t largest = 0, before = 0, at = 0, sum = 0;
  auto next = items.begin();
  const auto sum_to = [&](std::int64_t end) {
    for (; next != items.end() && at + next->second.elements <= end; ++next) {
      at += next->second.elements;
      sum += next->second.elements * next->second.bytes_each;
    }
    return next == items.end() ? sum : sum + (end - at) * next->second.bytes_each;
  };
  for (std::int64_t part = 1; part <= ranks; ++part) {
    const std::int64_t now = sum_to(total * part / ranks);
    largest = std::max(largest, now - before);
    before = now;
  }
  return largest;
}

}  // namespace

std::int64_t most_bytes_saved(const ParamStore& store, const Plan& plan) {
  std::map<std::pair<std::vector<int>, std::int64_t>, Items> shared;  // by the ranks of a sum, and how many share
  std::int64_t bytes = 0;
  for (const auto& group : store.groups()) {
    const std::vector<int>& members = group->sum->members();
    const std::int64_t ranks = static_cast<std::int64_t>(members.size());
    std::vector<bool> in_sum(plan.mesh().world_size());
    for (const int rank : members) {
      in_sum[rank] = true;
    }
    const std::int64_t owned_end = group->owned_begin + group->owned_elements;
    const bool even = group->padded > 0 && ranks * group->owned_elements % group->padded == 0;
    const std::int64_t sharing = even ? std::max<std::int64_t>(ranks * group->owned_elements / group->padded, 1) : 1;
    for (std::size_t i = 0; i < group->params.size(); ++i) {
      const Param& p = group->params[i];
      const std::int64_t end = i + 1 == group->params.size() ? group->padded : group->params[i + 1].begin;
      std::int64_t elements = std::min(end, owned_end) - std::max(p.begin, group->owned_begin);
      if (elements <= 0) {
        continue;
      }
      // Ranks of other sums may hold it too, and write their part.
      const std::vector<int> holders = plan.holders(p.spec);
      const std::int64_t here = std::count_if(holders.begin(), holders.end(), [&](int rank) { return in_sum[rank]; });
      if (sharing == ranks && here < static_cast<std::int64_t>(holders.size())) {
        const std::int64_t all = static_cast<std::int64_t>(holders.size());
        elements = (elements * here + all - 1) / all;
      }
      shared[{members, sharing}][p.spec.name] = {elements, bytes_of_element(*group, p, plan.settings())};
    }
    for (const PluginState& state : group->plugin_states) {
      if (state.kind == StateKind::summed) {
        bytes += group->padded * static_cast<std::int64_t>(size_of(DType::f32));
      } else if (state.kind == StateKind::per_rank) {
        bytes += state.shape.elements() * static_cast<std::int64_t>(size_of(state.dtype));
      }
    }
  }
  for (const auto& [ranks, items] : shared) {
    bytes += largest_run(items, ranks.second);
  }
  for (const auto& group : store.groups()) {
    for (const ParamState& state : group->states) {  // few, and any rank may have the elements that they go with
      bytes += state.over == StateOver::elements ? 0 : state.bytes();
    }
  }
  for (const GateState& state : store.gate_states()) {
    bytes += state.value.elements() * static_cast<std::int64_t>(size_of(DType::f32));
  }
  return bytes;
}

}  // namespace orthant
