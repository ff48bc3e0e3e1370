#include <nlohmann/json.hpp>

#include "apps/plan/plan_output.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

Json mesh_json(const MeshPlan& mesh) {
  Json axes = Json::array();
  for (const AxisPlan& axis : mesh.axes) {
    Json splits = Json::array();
    for (const SplitPlan& split : axis.splits) {
      splits.push_back({{"dim", split.dim}, {"only_in", split.only_in}, {"not_in", split.not_in}});
    }
    axes.push_back({{"name", axis.name},
                    {"size", axis.size},
                    {"splits", splits},
                    {"carved_from", axis.carved_from},
                    {"carved_in", axis.carved_in},
                    {"groups", axis.groups}});
  }
  return axes;
}

Json stages_json(const MeshPlan& mesh) {
  Json stages = Json::array();
  for (const StagePlan& stage : mesh.stages) {
    stages.push_back({{"ranks", stage.ranks}, {"chunks", stage.chunks}});
  }
  return stages;
}

Json params_json(const RankPlan& rank) {
  Json params = Json::array();
  for (const HeldParam& p : rank.params) {
    params.push_back({{"name", p.name},
                      {"global", p.global},
                      {"offset", p.offset},
                      {"size", p.size},
                      {"summed_over", p.summed_over}});
  }
  return params;
}

Json kinds_json(const BytesByKind& kinds) {
  Json json = Json::object();
  for (MemoryKind kind : all_memory_kinds) {
    json[name_of(kind)] = kinds[kind];
  }
  return json;
}

Json classes_json(const std::vector<RankClass>& classes) {
  Json list = Json::array();
  for (const RankClass& c : classes) {
    list.push_back(
        {{"ranks", c.ranks},
         {"weights_bytes", c.memory.weights},
         {"gradients_bytes", c.memory.gradients},
         {"optimizer_bytes", c.memory.states},
         {"teacher_bytes", c.memory.teacher},
         {"other_bytes", c.memory.other},
         {"peak_bytes", c.memory.peak},
         {"peak_by_kind", kinds_json(c.memory.peak_kinds)},
         {"worst_peak_bytes", c.worst.peak},
         {"worst_peak_by_kind", kinds_json(c.worst.peak_kinds)},
         {"host_bytes", c.memory.host_peak},
         {"worst_host_bytes", c.worst.host_peak},
         {"disk_bytes", c.memory.disk},
         {"sent_bytes", c.sent},
         {"recomputed",
          {{"flops", c.recomputed.flops}, {"kept", c.recomputed.kept}, {"micro_batches", c.recomputed.pairs}}}});
    if (c.recorded) {
      list.back()["recorded_peak_bytes"] = c.recorded->peak;
      list.back()["recorded_peak_by_kind"] = kinds_json(c.recorded->peak_kinds);
    }
  }
  return list;
}

Json collectives_json(const RankPlan& rank) {
  Json list = Json::array();
  for (const CollectiveSum& sum : sum_collectives(rank)) {
    const RecordedGroup& group = rank.step.groups[sum.group];
    list.push_back({{"axis", rank.axis[sum.group]},
                    {"purpose", group.name},
                    {"ranks", group.members},
                    {"operation", sum.operation},
                    {"dtype", name_of(sum.dtype)},
                    {"count", sum.count},
                    {"least_bytes", sum.least},
                    {"most_bytes", sum.most},
                    {"sent_bytes", sum.sent}});
  }
  return list;
}

}  // namespace

std::string plan_json(const PlanOutput& plan) {
  Json json;
  json["world_size"] = plan.mesh.world_size;
  json["axes"] = mesh_json(plan.mesh);
  json["layers"] = plan.mesh.layers;
  json["stages"] = stages_json(plan.mesh);
  json["memory"] = classes_json(plan.classes);
  json["recompute"] = plan.memory.recompute;
  json["keep_micro_batches"] = plan.memory.keep_micro_batches;
  if (!plan.trained.empty()) {
    json["trained"] = plan.trained;
    json["peak_if_all_trained_bytes"] = plan.peak_of_all;
  }
  if (!plan.rates.empty()) {
    json["rates"] = plan.rates;
  }
  json["rank"] = plan.rank.rank;
  json["step"] = plan.step;
  json["step_sequences"] = sequences_of_step(plan.batch, plan.step - 1);
  json["parameters"] = params_json(plan.rank);
  json["collectives"] = collectives_json(plan.rank);
  if (plan.data) {
    const std::int64_t read = sequences_before(plan.batch, plan.steps);
    json["data"] = {
        {"sequences", plan.data->sequences},
        {"tokens", plan.data->tokens ? Json(*plan.data->tokens) : Json(nullptr)},
        {"steps", plan.steps},
        {"sequences_read", read},
        {"epochs", static_cast<double>(read) / static_cast<double>(std::max<std::int64_t>(plan.data->sequences, 1))}};
  }
  if (!plan.advice.empty()) {
    json["advice"] = plan.advice;
  }
  json["assumed"] = Json::array({"routing is balanced where no other is named", "no token is padding"});
  return json.dump(2) + "\n";
}

}  // namespace orthant
