// What a layout would hold and send, found without starting a rank: two steps of the real model and trainer on the
// meta device (core/dry_run/) and a communicator that only writes down (core/dry_run/planning_communicator.h).
//
// Assumed: a routing (planned_load.h), and that no token is padding; the peak is that of tensors (Device::memory),
// without what a library keeps for itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"
#include "core/dry_run/planned_load.h"
#include "core/dry_run/planning_communicator.h"
#include "core/dry_run/recomputed.h"

namespace orthant {

// A dim that an axis splits: everywhere, in some regions only, or everywhere but in some.
struct SplitPlan {
  std::string dim;
  std::vector<std::string> only_in, not_in;  // names of regions
};

struct AxisPlan {
  std::string name;
  int size = 1;
  std::vector<SplitPlan> splits;
  std::vector<std::string> carved_from, carved_in;  // names of dims, and of the regions where they are split
  std::vector<std::vector<int>> groups;             // world ranks of each
};

struct StagePlan {
  std::vector<int> ranks;
  // Layers [first, second) of each chunk: 0 the embedding, 1 + block, blocks + 1 the head.
  std::vector<std::pair<int, int>> chunks;
};

struct MeshPlan {
  int world_size = 1;
  std::vector<AxisPlan> axes;
  int layers = 0;  // of the whole model, embedding and head among them
  int head = 0;    // the head's number
  std::vector<StagePlan> stages;
};

// A rank's slice of one parameter.
struct HeldParam {
  std::string name;
  std::vector<std::int64_t> global, offset, size;  // one entry a dimension
  std::vector<int> summed_over;                    // world ranks over which its gradient is summed
};

struct MemoryPlan {
  std::int64_t weights = 0;    // as layers read them, whole or the rank's shard; fp32 ones are the master weights too
  std::int64_t gradients = 0;  // whole or the rank's shard
  std::int64_t states =
      0;  // of optimizer, keepers and gates; master weights, where they are not the weights themselves
  std::int64_t teacher = 0;    // weights of the model that this one learns from (distil.teacher)
  std::int64_t other = 0;      // held between steps besides: sums, buffers of plugins
  std::int64_t peak = 0;       // the most at any time from the start to the end of a second step
  BytesByKind peak_kinds;      // what that is made of
  std::int64_t host_peak = 0;  // of tensors in the host's memory (Device::host_empty)
  std::int64_t disk = 0;       // of files that keepers make (Keeper::disk_bytes)
  bool operator==(const MemoryPlan&) const = default;
};

struct RankPlan {
  int rank = 0;
  std::vector<HeldParam> params;
  MemoryPlan memory;
  CollectiveRecord step;          // the collectives of the step, in order
  std::vector<std::string> axis;  // of each group of `step`: the axes along which its members differ
  Recomputed recomputed;
};

// Which routing is assumed. Not balanced: that of the rank that gets most.
struct Routed {
  Load load = Load::balanced;
  double share = 0;  // recorded: of a layer's choices, those for one rank's experts
};

// What planning took: ranks that were walked through, once for each routing, and micro-batches of them.
struct PlanEffort {
  std::int64_t ranks = 0, micro_batches = 0;
};

// Ranks that hold and send equally much.
struct RankClass {
  std::vector<int> ranks;
  MemoryPlan memory;                   // by balanced routing
  MemoryPlan worst;                    // an upper bound: by the worst routing, side streams as late as they may be
  std::optional<MemoryPlan> recorded;  // by a routing that a run has had
  std::int64_t sent = 0;               // bytes that leave each of them in a step, by balanced routing
  Recomputed recomputed;
};

// Errors, of all three: ConfigError for a layout that does not fit, as check_layout's.
MeshPlan plan_mesh(const Config& config);
// `step`: which one makes the collectives, from 0: a keeper may do something every so many steps. ConfigError for a
// rank that the layout does not have. By the worst routing the peak is that of a validation too, where there is one.
// recorded: the share of Routed; 0: none.
// effort: counts on; null: nobody wants to know.
RankPlan plan_rank(const Config& config, int rank, std::int64_t step = 0, const Routed& routed = {},
                   PlanEffort* effort = nullptr);
std::vector<RankClass> plan_classes(const Config& config, std::int64_t step = 0, double recorded = 0,
                                    PlanEffort* effort = nullptr);
// As plan_rank, and every micro-batch is walked through, also those that repeat.
RankPlan plan_whole_step(const Config& config, int rank, std::int64_t step = 0, const Routed& routed = {});

// By stage; the ranks of one hold parts of the same layers.
std::vector<std::vector<int>> ranks_of_stages(const Plan& plan);

// How many ranks share the experts of a layer out among themselves.
int expert_ranks(const Config& config);

std::int64_t bytes_sent(const CollectiveRecord& record);

}  // namespace orthant
