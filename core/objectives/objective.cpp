// What objectives do unless they say otherwise.
#include <orthant/catalogue.h>
#include <orthant/objective.h>
#include <orthant/settings.h>

#include <algorithm>

#include "core/data/batch_builder.h"

namespace orthant {

bool Objective::implied(const Settings&) const {
  return false;
}

std::vector<Refusal> Objective::refusals(const Settings&) const {
  return {};
}

ReferenceModel Objective::reference(const Settings&) const {
  return {};
}

std::string Objective::unit(const Settings&) const {
  return "";
}

bool Objective::over_sequences(const Settings&) const {
  return false;
}

std::vector<std::string> Objective::sums(const Settings&) const {
  return {"loss"};
}

std::vector<std::string> Objective::counts(const Settings&) const {
  return {"tokens"};
}

void Objective::count(const HostBatch&, const HostBatch& held, const Plan&, std::span<std::int64_t> counts) const {
  counts[0] += std::count_if(held.label.begin(), held.label.end(), [](std::int32_t label) { return label >= 0; });
}

std::shared_ptr<const ObjectiveBatch> Objective::upload(const HostBatch&, const Plan&, Stream&) const {
  return nullptr;
}

ObjectiveReport Objective::report(const Settings&, std::span<const double> sums, std::span<const std::int64_t> counts,
                                  bool) const {
  return {.loss = sums[0] / static_cast<double>(counts[0])};
}

std::string Objective::told(const std::map<std::string, double>&, bool) const {
  return "";
}

std::string objective_name(const Settings& settings) {
  if (!settings.train.objective.empty()) {
    return settings.train.objective;
  }
  for (const std::string& name : settings.catalogue->names<Objective>()) {
    if (settings.catalogue->get<Objective>(name).implied(settings)) {
      return name;
    }
  }
  return "cross_entropy";
}

const Objective& objective_of(const Settings& settings) {
  return settings.catalogue->get<Objective>(objective_name(settings));
}

HostBatch held_rows(const HostBatch& whole, const Plan& plan, Region region, int space) {
  // Where nothing divides positions, a batch may have fewer than the plan's sequences.
  if (plan.axes_of(Dim::position, region).empty()) {
    return whole;
  }
  std::vector<PositionRun> runs;
  for (const Range& run : plan.positions(region, plan.mesh().rank(), space)) {
    runs.push_back({run.begin, run.count});
  }
  return take_positions(whole, runs);
}

}  // namespace orthant
