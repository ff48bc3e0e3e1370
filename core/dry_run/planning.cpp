#include "core/dry_run/planning.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/arch/links.h"
#include "core/dry_run/meta_device.h"
#include "core/dry_run/planning_source.h"
#include "core/dry_run/stage_view.h"
#include "core/layers/saved_bytes.h"
#include "core/plan/batch_share.h"
#include "core/plan/keeper_chain.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

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

// Bytes of parameters' memory, each allocation counted for the first that is asked about.
class Counter {
 public:
  std::int64_t add(const Tensor& t) {
    return t.defined() && seen_.insert(t.storage().get()).second ? static_cast<std::int64_t>(t.storage()->bytes()) : 0;
  }

 private:
  std::set<const Storage*> seen_;
};

MemoryPlan memory_of(const ParamStore& store, const Plan& plan, Teacher* teacher) {
  const Device& device = plan.device();
  MemoryPlan memory;
  Counter counter;
  if (teacher != nullptr) {
    for (const auto& group : teacher->parameters().groups()) {
      memory.teacher += counter.add(group->weight) + counter.add(group->owned_weight);
    }
  }
  for (const auto& group : store.groups()) {
    memory.weights += counter.add(group->weight) + counter.add(group->owned_weight);
    memory.gradients += counter.add(group->grad) + counter.add(group->owned_grad);
    memory.states += counter.add(group->master);
    for (const ParamState& state : group->states) {
      memory.states += counter.add(state.values);
    }
    for (const PluginState& state : group->plugin_states) {
      memory.states += counter.add(state.tensor);
    }
  }
  for (const GateState& state : store.gate_states()) {
    memory.states += counter.add(state.value);
  }
  memory.other = device.memory().current_bytes - memory.weights - memory.gradients - memory.states - memory.teacher;
  memory.disk = plan.keepers().disk_bytes() + (teacher != nullptr ? teacher->plan().keepers().disk_bytes() : 0);
  return memory;
}

void take_peaks(MemoryPlan& memory, const Device& device) {
  const MemoryUse use = device.memory();
  memory.peak = use.peak_bytes;
  memory.peak_kinds = use.peak_kinds;
  memory.host_peak = device.host_memory().peak_bytes;
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
    const AxisSpec& spec = mesh.axes()[axis];
    if (spec.name == group.name) {
      return spec.name;
    }
    if (spec.carve_of.empty() && differ_along(mesh, group.members, axis)) {
      vary.push_back(axis);
      names += (names.empty() ? "" : " x ") + spec.name;
    }
  }
  const std::vector<int> whole = mesh.members(vary, group.members.front());
  if (whole == group.members) {
    return names;
  }
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh.axes().size()); ++axis) {
    const AxisSpec& spec = mesh.axes()[axis];
    if (!spec.carve_of.empty()) {
      if (mesh.members(std::span<const AxisId>(&axis, 1), group.members.front()) == group.members) {
        return spec.name;
      }
      const bool keeps = differ_along(mesh, whole, axis) && !differ_along(mesh, group.members, axis);
      names += keeps ? ", same " + spec.name : "";
    }
  }
  return names;
}

// Every token of the rank's step is made, and every micro-batch passes every layer, as in training.
void check_size(const Config& config, const Plan& plan) {
  constexpr std::int64_t most_tokens = std::int64_t{1} << 25,
                         most_passes = std::int64_t{1} << 18;  // half a minute each
  const BatchShare share = largest_share(plan);
  const std::int64_t tokens = share.sequences * config.settings.data.sequence_length;
  const int blocks = blocks_in(plan.links());
  const std::int64_t passes = std::int64_t{share.micro_batches} * blocks;
  Diagnostics refused = config.diagnostics();
  const std::string origin =
      config.tables.empty()
          ? "default"
          : config.origin(config.settings.batch.grow_to.empty() ? "batch.sequences" : "batch.grow_to");
  if (tokens > most_tokens) {
    refused.add(origin,
                fmt::format("this step is too large to be planned: {} sequences of {} tokens for each rank, at most {} "
                            "tokens are possible",
                            share.sequences, config.settings.data.sequence_length, most_tokens),
                "plan with fewer sequences, or with more ranks that split them");
  } else if (passes > most_passes) {
    refused.add(
        origin,
        fmt::format("this step is too long to be planned: {} micro-batches through {} layers, at most {} passes "
                    "are possible",
                    share.micro_batches, blocks, most_passes),
        "plan with fewer sequences: further micro-batches repeat the same");
  }
  refused.throw_if_any();
}

std::vector<int> exchanging(const Plan& plan) {
  return plan.mesh().members(plan.axes_of(Dim::expert, Region::experts), plan.mesh().rank());
}

PlannedRouting routing_of(const Plan& plan, const Routed& routed) {
  PlannedRouting routing{.load = routed.load, .share = routed.share};
  const std::int64_t experts = plan.settings().moe.experts;
  if (experts == 0 || routed.load == Load::balanced) {
    return {};
  }
  const Range own = plan.part(Dim::expert, experts, Region::experts);
  routing.first = own.begin;
  routing.count = own.count;
  const std::vector<int> peers = exchanging(plan);
  const std::vector<int> near = plan.mesh().members(plan.axes_of(Dim::position, Region::router), plan.mesh().rank());
  routing.sharing = std::count_if(peers.begin(), peers.end(),
                                  [&](int peer) { return std::find(near.begin(), near.end(), peer) != near.end(); });
  return routing;
}

// Whether operations of the configuration's device may still be running when they return.
bool runs_behind(const Config& config) {
  return config.settings.run.device != "cpu" && config.settings.run.device != "guarded";
}

std::vector<std::string> regions_of(const std::vector<RegionDim>& list, Dim dim) {
  std::vector<std::string> regions;
  for (const RegionDim& entry : list) {
    if (entry.dim == dim) {
      regions.emplace_back(name_of(entry.region));
    }
  }
  return regions;
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    names.push_back(name);
  }
}

AxisPlan plan_axis(const Mesh& mesh, AxisId axis) {
  const AxisSpec& spec = mesh.axes()[axis];
  AxisPlan plan;
  plan.name = spec.name;
  plan.size = spec.size;
  for (Dim dim : spec.splits) {
    plan.splits.push_back({name_of(dim), {}, regions_of(spec.joins_in, dim)});
  }
  for (const RegionDim& entry : spec.splits_in) {
    const bool known = std::any_of(plan.splits.begin(), plan.splits.end(),
                                   [&](const SplitPlan& split) { return split.dim == name_of(entry.dim); });
    if (!known) {
      plan.splits.push_back({name_of(entry.dim), regions_of(spec.splits_in, entry.dim), {}});
    }
  }
  for (const RegionDim& of : spec.carve_of) {
    add_once(plan.carved_from, name_of(of.dim));
    add_once(plan.carved_in, name_of(of.region));
  }
  std::vector<bool> seen(mesh.world_size(), false);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (!seen[rank]) {
      plan.groups.push_back(mesh.members(std::span<const AxisId>(&axis, 1), rank));
      for (int member : plan.groups.back()) {
        seen[member] = true;
      }
    }
  }
  return plan;
}

}  // namespace

std::vector<std::vector<int>> ranks_of_stages(const Plan& plan) {
  std::vector<std::vector<int>> ranks(plan.stages());
  for (int rank = 0; rank < plan.mesh().world_size(); ++rank) {
    ranks[plan.stage_of_rank(rank)].push_back(rank);
  }
  return ranks;
}

std::int64_t bytes_sent(const CollectiveRecord& record) {
  return std::accumulate(
      record.calls.begin(), record.calls.end(), std::int64_t{0},
      [](std::int64_t sum, const CollectiveCall& call) { return sum + call.times * call.bytes_sent; });
}

MeshPlan plan_mesh(const Config& config) {
  check_layout(config);
  Session session(config);
  session.plan(0, nullptr, nullptr);
  const Plan& plan = session.plan();
  MeshPlan result;
  result.world_size = session.world_size();
  for (AxisId axis = 0; axis < static_cast<AxisId>(session.mesh().axes().size()); ++axis) {
    result.axes.push_back(plan_axis(session.mesh(), axis));
  }
  result.layers = plan.cut().back();
  result.head = head_of(plan.links()).number;
  for (std::vector<int>& ranks : ranks_of_stages(plan)) {
    result.stages.push_back({std::move(ranks), {}});
  }
  for (std::size_t piece = 0; piece + 1 < plan.cut().size(); ++piece) {
    result.stages[piece % result.stages.size()].chunks.emplace_back(plan.cut()[piece], plan.cut()[piece + 1]);
  }
  return result;
}

namespace {

// What a resume brings of the states, and a save: whatever a keeper takes for that is planned too.
void load_states(ParamStore& store, const Plan& plan, const HookContext& at) {
  for (const auto& group : store.groups()) {
    with_held(plan.keepers(), *group, Held::state, at, [](Stream&) {});
  }
  store.refresh_weights(plan, Change::loaded, at);
}
// Where checkpoints are written beside the training, from the first of them to the end. Undefined: nothing is kept.
Tensor copy_of_state(const ParamStore& store, const Plan& plan) {
  const RunSettings& run = plan.settings().run;
  const std::int64_t bytes = run.checkpoint_async && run.checkpoint_every > 0 ? most_bytes_saved(store, plan) : 0;
  const MemoryScope as(plan.device(), MemoryKind::states);
  return bytes > 0 ? plan.device().host_empty(DType::u8, {bytes}) : Tensor();
}
void save_states(ParamStore& store, const Plan& plan, const HookContext& at) {
  for (const auto& group : store.groups()) {
    with_held(plan.keepers(), *group, Held::saved, at, [](Stream&) {});
  }
  if (const std::int64_t bytes = bytes_to_gather_texts(plan.mesh().world_size()); bytes > 0) {
    plan.device().empty(DType::u8, {bytes});
  }
}

// Of the step as the configuration has it. links: of the model.
RankPlan walk(const Config& config, int rank, std::int64_t step, const Routed& routed, const SharedLinks& links,
              PlanEffort* effort) {
  const bool worst = routed.load == Load::worst;
  MetaDevice device(worst ? Sides::as_late_as_may_be : Sides::sums_late, runs_behind(config));
  RankPlan result;
  result.rank = rank;
  const std::unique_ptr<Stream> stream = device.make_main_stream();
  Session session(config);
  const std::unique_ptr<Communicator> communicator =
      make_planning_communicator(rank, session.world_size(), result.step);
  session.share_links(links);
  session.plan(rank, communicator.get(), &device);
  check_size(config, session.plan());
  if (effort != nullptr) {
    effort->micro_batches += largest_share(session.plan()).micro_batches;
  }
  const PlanningSource source(config.settings,
                              config.settings.batch.sequences / batch_shares(session.plan()).front().micro_batches);
  const std::unique_ptr<Teacher> teacher = make_teacher(config, rank, *communicator, device, *stream);
  if (teacher != nullptr) {
    device.set_routing(teacher->plan().settings().moe.experts, routing_of(teacher->plan(), routed));
  }
  device.set_routing(config.settings.moe.experts, routing_of(session.plan(), routed));
  Trainer trainer(session.plan(), *stream, source, teacher.get());
  result.step.calls.clear();  // those of making the trainer
  const Tensor copy = copy_of_state(trainer.parameters(), session.plan());
  if (worst) {
    load_states(trainer.parameters(), session.plan(), {.stream = *stream, .step = step});
  }
  trainer.step(step);
  result.params = held_params(trainer.parameters());
  result.memory = memory_of(trainer.parameters(), session.plan(), teacher.get());
  // By the second step keepers have learned the order of the groups, and fetch ahead.
  CollectiveRecord of_step = result.step;
  const std::int64_t next = std::max(step + 1, first_largest_step(config.settings.batch));  // no step needs more
  trainer.begin(next);
  if (trainer.reports_late()) {  // a run has two reports under way then
    trainer.begin(next + 1);
    trainer.finish();
  }
  trainer.finish();
  if (worst && config.settings.run.validate_every > 0) {
    trainer.validate();
  }
  if (worst) {
    save_states(trainer.parameters(), session.plan(), {.stream = *stream, .step = step + 1});
  }
  std::swap(result.step, of_step);
  take_peaks(result.memory, device);
  return result;
}

// The layout as `rank` sees it, without a device.
void see(Session& session, int rank) {
  if (rank < 0 || rank >= session.world_size()) {
    throw ConfigError(fmt::format("there is no rank {}: the layout has {} rank{}, numbered from 0", rank,
                                  session.world_size(), session.world_size() == 1 ? "" : "s"));
  }
  session.plan(rank, nullptr, nullptr);
}

}  // namespace

StageView view_of(const Config& config, const Plan& plan, std::int64_t step) {
  return {
      .links = plan.shared_links(), .shorter = shorter(config, plan, step), .recomputed = recomputed_of(plan, step)};
}

RankPlan walk_shortest(const Config& config, int rank, std::int64_t step, const Routed& routed, const StageView& stage,
                       PlanEffort* effort) {
  if (effort != nullptr) {
    ++effort->ranks;
  }
  const Config& walked = stage.shorter ? stage.shorter->config : config;
  return walk(walked, rank, step, routed, stage.links, effort);
}

RankPlan plan_by(const RankPlan& shortest, const Config& config, std::int64_t step, const Routed& routed,
                 const StageView& stage, PlanEffort* effort) {
  std::optional<RankPlan> result;
  if (const std::optional<ShortStep>& of = stage.shorter) {
    result = repeated(shortest, walk(of->longer, shortest.rank, step, routed, stage.links, effort), of->periods);
    if (!result) {
      result = walk(config, shortest.rank, step, routed, stage.links, effort);
    }
  } else {
    result = shortest;
  }
  result->recomputed = stage.recomputed;
  return *std::move(result);
}

namespace {

RankPlan plan_seen(const Config& config, Session& session, std::int64_t step, const Routed& routed,
                   const StageView& stage, PlanEffort* effort) {
  RankPlan result = plan_by(walk_shortest(config, session.mesh().rank(), step, routed, stage, effort), config, step,
                            routed, stage, effort);
  for (const RecordedGroup& group : result.step.groups) {
    result.axis.push_back(axis_of(session.mesh(), group));
  }
  return result;
}

}  // namespace

RankPlan plan_rank(const Config& config, int rank, std::int64_t step, const Routed& routed, PlanEffort* effort) {
  Session session(config);
  see(session, rank);
  return plan_seen(config, session, step, routed, view_of(config, session.plan(), step), effort);
}

RankPlan plan_whole_step(const Config& config, int rank, std::int64_t step, const Routed& routed) {
  Session session(config);
  see(session, rank);
  StageView stage = view_of(config, session.plan(), step);
  stage.shorter.reset();
  return plan_seen(config, session, step, routed, stage, nullptr);
}

int expert_ranks(const Config& config) {
  Session session(config);
  session.plan(0, nullptr, nullptr);
  return static_cast<int>(exchanging(session.plan()).size());
}

}  // namespace orthant
