#include "core/run/planning.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/layout.h"
#include "core/meta/meta_device.h"
#include "core/trainer.h"

namespace orthant {
namespace {

// Sequences without padding whose tokens all count; their ids mean nothing.
class PlanningSource final : public BatchSource {
 public:
  explicit PlanningSource(const Settings& settings) : settings_(settings) {}

  HostBatch train(std::int64_t, std::int64_t first, std::int64_t count) const override {
    const std::int64_t length = settings_.data.sequence_length;
    const std::size_t tokens = static_cast<std::size_t>(count * length);
    HostBatch batch;
    batch.sequences = count;
    batch.positions = length;
    batch.token.resize(tokens);
    batch.label.resize(tokens);
    batch.position.resize(tokens);
    // Sequences of several documents carry their beginnings to the device, others do not.
    batch.first.resize(tokens, settings_.data.documents == Documents::packed ? 1 : 0);
    batch.valid.resize(tokens, 1);
    batch.index.resize(tokens);
    std::iota(batch.index.begin(), batch.index.end(), first * length);
    for (std::size_t t = 0; t < tokens; ++t) {
      batch.position[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % length);
    }
    return batch;
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override { return train(0, first, count); }
  std::int64_t validation_sequences() const override { return settings_.data.validation_sequences; }
  std::int64_t vocabulary() const override { return settings_.model.vocab_size; }

 private:
  const Settings& settings_;
};

std::vector<HeldParam> held_params(const ParamStore& store) {
  std::vector<HeldParam> held;
  for (const auto& group : store.groups()) {
    for (const Param& p : group->params) {
      HeldParam& to = held.emplace_back();
      to.name = p.spec.name;
      to.summed_over = group->sum->members();
      for (int i = 0; i < p.spec.global.rank(); ++i) {
        to.global.push_back(p.spec.global[i]);
        to.offset.push_back(p.offset[i]);
        to.size.push_back(p.size[i]);
      }
    }
  }
  return held;
}

// Bytes of parameters' tensors, each counted once where two names mean the same memory.
class Counter {
 public:
  std::int64_t add(const Tensor& t) {
    return t.defined() && seen_.insert(t.data()).second ? static_cast<std::int64_t>(t.bytes()) : 0;
  }

 private:
  std::set<const void*> seen_;
};

MemoryPlan memory_of(const ParamStore& store, const Device& device) {
  MemoryPlan memory;
  Counter counter;
  for (const auto& group : store.groups()) {
    memory.weights += counter.add(group->weight);
    memory.gradients += counter.add(group->grad);
    for (const Tensor& t : {group->master, group->moment1, group->moment2}) {
      memory.optimizer += counter.add(t);
    }
  }
  memory.other = device.memory().current_bytes - memory.weights - memory.gradients - memory.optimizer;
  memory.peak = device.memory().peak_bytes;
  return memory;
}

bool differ_along(const Mesh& mesh, const std::vector<int>& ranks, AxisId axis) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return mesh.coordinate(axis, rank) != mesh.coordinate(axis, ranks.front()); });
}

// The axis that made the group, else those along which its members differ; where these are only a part of the ranks
// along plain axes, the carved ones along which they agree.
std::string axis_of(const Mesh& mesh, const RecordedGroup& group) {
  std::vector<AxisId> vary;
  std::string names;
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh.axes().size()); ++axis) {
    const AxisSpec& spec = mesh.axes()[static_cast<std::size_t>(axis)];
    if (spec.name == group.name) {
      return spec.name;
    }
    if (spec.carve_of.empty() && differ_along(mesh, group.members, axis)) {
      vary.push_back(axis);
      names += (names.empty() ? "" : " x ") + spec.name;
    }
  }
  if (mesh.members(vary, group.members.front()) == group.members) {
    return names;
  }
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh.axes().size()); ++axis) {
    const AxisSpec& spec = mesh.axes()[static_cast<std::size_t>(axis)];
    if (!spec.carve_of.empty()) {
      if (mesh.members(std::span<const AxisId>(&axis, 1), group.members.front()) == group.members) {
        return spec.name;
      }
      names += differ_along(mesh, group.members, axis) ? "" : ", same " + spec.name;
    }
  }
  return names;
}

RankClass class_of(const Config& config, int rank) {
  const RankPlan plan = plan_rank(config, rank);
  return {.ranks = {rank}, .memory = plan.memory, .sent = bytes_sent(plan.step)};
}

// Ranks at one place along the axes that cut the layers hold parts of the same layers.
std::vector<std::vector<int>> alike(Layout& layout) {
  layout.plan(0, nullptr, nullptr);
  std::vector<AxisId> cutting;
  for (AxisId axis = 0; axis < static_cast<AxisId>(layout.mesh().axes().size()); ++axis) {
    if (layout.mesh().splits(axis, Dim::layer, Region::norm)) {
      cutting.push_back(axis);
    }
  }
  std::map<std::vector<int>, std::vector<int>> by_place;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    std::vector<int> place;
    for (AxisId axis : cutting) {
      place.push_back(layout.mesh().coordinate(axis, rank));
    }
    by_place[place].push_back(rank);
  }
  std::vector<std::vector<int>> classes;
  for (auto& [place, ranks] : by_place) {
    classes.push_back(std::move(ranks));
  }
  return classes;
}

}  // namespace

std::int64_t bytes_sent(const CollectiveRecord& record) {
  return std::accumulate(record.calls.begin(), record.calls.end(), std::int64_t{0},
                         [](std::int64_t sum, const CollectiveCall& call) { return sum + call.bytes_sent; });
}

MeshPlan plan_mesh(const Config& config) {
  check_layout(config);
  Layout layout(config);
  MeshPlan plan;
  plan.world_size = layout.world_size();
  const Mesh& mesh = layout.mesh();
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh.axes().size()); ++axis) {
    const AxisSpec& spec = mesh.axes()[static_cast<std::size_t>(axis)];
    AxisPlan& to = plan.axes.emplace_back();
    to.name = spec.name;
    to.size = spec.size;
    for (Dim dim : spec.splits) {
      to.splits.emplace_back(name_of(dim));
    }
    for (const RegionDim& of : spec.carve_of) {
      to.carved_from.emplace_back(name_of(of.dim));
    }
    std::vector<bool> seen(static_cast<std::size_t>(plan.world_size), false);
    for (int rank = 0; rank < plan.world_size; ++rank) {
      if (!seen[static_cast<std::size_t>(rank)]) {
        to.groups.push_back(mesh.members(std::span<const AxisId>(&axis, 1), rank));
        for (int member : to.groups.back()) {
          seen[static_cast<std::size_t>(member)] = true;
        }
      }
    }
  }
  return plan;
}

RankPlan plan_rank(const Config& config, int rank) {
  MetaDevice device;
  RankPlan result;
  result.rank = rank;
  const std::unique_ptr<Stream> stream = device.make_main_stream();
  const PlanningSource source(config.settings);
  Layout layout(config);
  if (rank < 0 || rank >= layout.world_size()) {
    throw ConfigError(fmt::format("there is no rank {}: the layout has {} rank{}, numbered from 0", rank,
                                  layout.world_size(), layout.world_size() == 1 ? "" : "s"));
  }
  const std::unique_ptr<Communicator> communicator = make_planning_communicator(rank, layout.world_size(), result.step);
  layout.plan(rank, communicator.get(), &device);
  Trainer trainer(layout.plan(), *stream, source);
  result.step.calls.clear();  // those of making the trainer
  trainer.step(0);
  result.params = held_params(trainer.parameters());
  result.memory = memory_of(trainer.parameters(), device);
  for (const RecordedGroup& group : result.step.groups) {
    result.axis.push_back(axis_of(layout.mesh(), group));
  }
  return result;
}

std::vector<RankClass> plan_classes(const Config& config) {
  Layout layout(config);
  std::vector<RankClass> classes;
  for (const std::vector<int>& ranks : alike(layout)) {
    const RankClass first = class_of(config, ranks.front()), last = class_of(config, ranks.back());
    if (first.memory == last.memory && first.sent == last.sent) {
      classes.push_back(first);
      classes.back().ranks = ranks;
      continue;
    }
    // Parts that a plugin cuts unevenly: each rank by itself, and equal ones together again.
    const std::size_t begin = classes.size();
    for (int rank : ranks) {
      const RankClass own = class_of(config, rank);
      const auto same = std::find_if(classes.begin() + static_cast<std::ptrdiff_t>(begin), classes.end(),
                                     [&](const RankClass& c) { return c.memory == own.memory && c.sent == own.sent; });
      if (same == classes.end()) {
        classes.push_back(own);
      } else {
        same->ranks.push_back(rank);
      }
    }
  }
  return classes;
}

}  // namespace orthant
