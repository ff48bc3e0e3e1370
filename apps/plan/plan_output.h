// How `orthant plan` shows a plan (core/dry_run/planning.h): as text for people, as JSON for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/command/arguments.h"
#include "core/data/data_size.h"
#include "core/dry_run/planning.h"

namespace orthant {

struct PlanOutput {
  std::string file;
  std::int64_t step = 1;  // whose collectives are shown, from 1
  MeshPlan mesh;
  RankPlan rank;
  std::vector<RankClass> classes;
  MemorySettings memory;  // as chosen, where "fit" was written
  // Where parameters are frozen or have adapters: what trains, a line each, and the largest peak of a rank, bytes, if
  // all trained without adapters.
  std::vector<std::string> trained;
  std::int64_t peak_of_all = 0;
  std::vector<std::string> rates;             // rates_text
  ComputeType gradients = ComputeType::fp32;  // that they are kept in
  BatchSettings batch;
  std::int64_t steps = 0;                // of the run
  std::optional<DataSize> data = {};     // nothing: it has no end, or a file would have to be written first
  std::vector<std::string> advice = {};  // lighter_keys
};

// Other choices of the plugins' keys with which the planned rank would send far less in the step, a sentence each:
// alone, or with a further axis over the same ranks. Tried only where the rank sends more than it holds of weights and
// gradients, and a third of that along the plugin's axis.
std::vector<std::string> lighter_keys(const ConfigArguments& arguments, const PlanOutput& plan);

std::string plan_text(const PlanOutput& plan);
std::string plan_json(const PlanOutput& plan);  // docs/guides/plan.md lists the keys

// Collectives of one step that are alike: one group, operation and type.
struct CollectiveSum {
  std::size_t group = 0;  // index in RankPlan::axis and in the record's groups
  std::string operation;
  DType dtype = DType::u8;
  std::int64_t count = 0;
  std::int64_t least = 0, most = 0;  // bytes of one call: the larger of what it reads and writes
  std::int64_t sent = 0;             // bytes that leave the rank, of all of them
};

// In the order of the first call of each. Groups of one member are left out: nothing moves.
std::vector<CollectiveSum> sum_collectives(const RankPlan& rank);

// "0-3, 8-11"; a long list with equal steps as "0, 4, .., 60", any other cut short.
std::string numbers_text(const std::vector<int>& numbers);

// Parameters that differ only in the numbers in their names, as one: "layers.{0-15}.experts.{0-3}.w1".
struct FoldedParams {
  std::string names;
  std::int64_t count = 0;
  const HeldParam* first = nullptr;
};
std::vector<FoldedParams> fold(const std::vector<HeldParam>& params);

}  // namespace orthant
