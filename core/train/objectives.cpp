#include "core/train/objectives.h"

#include <algorithm>

#include "core/objectives/kinds.h"

namespace orthant {

Objectives::Objectives(const Settings& settings)
    : settings_(settings),
      reference_(objective_of(settings).reference(settings)),
      over_sequences_(objective_of(settings).over_sequences(settings)) {
  for (const Objective* objective : objectives_of(settings)) {
    const std::size_t sums = objective->sums(settings).size(), counts = objective->counts(settings).size();
    const std::string name = places_.empty() ? objective_name(settings) : "of model.mtp_depth";
    require(sums > 0 && counts > 0, "objective '{}' has {} sums and {} counts, expected one of each at least", name,
            sums, counts);
    places_.push_back({objective, name, sums_, static_cast<std::int64_t>(sums), counts_, counts});
    sums_ += static_cast<std::int64_t>(sums);
    counts_ += counts;
  }
}

std::vector<ObjectiveStep> Objectives::in(const Tensor& sums) const {
  std::vector<ObjectiveStep> of;
  for (const Place& place : places_) {
    of.push_back({place.objective, place.name, sums.slice(place.first_sum, {place.sums}), {}});
  }
  return of;
}

void Objectives::set_counts(std::vector<ObjectiveStep>& of, std::span<const std::int64_t> counts) const {
  for (std::size_t i = 0; i < of.size(); ++i) {
    const auto own = counts.subspan(places_[i].first_count, places_[i].counts);
    of[i].counts.assign(own.begin(), own.end());
  }
}

void Objectives::count(const HostBatch& whole, const Plan& plan, std::span<std::int64_t> valid,
                       std::span<std::int64_t> counts) const {
  const HostBatch held = held_rows(whole, plan);
  for (const Place& place : places_) {
    place.objective->count(whole, held, plan, counts.subspan(place.first_count, place.counts));
  }
  const auto tokens = [](const HostBatch& of) {
    return std::count_if(of.valid.begin(), of.valid.end(), [](std::uint8_t v) { return v != 0; });
  };
  valid[0] += tokens(held);
  for (std::size_t i = 1; i < valid.size(); ++i) {
    valid[i] += tokens(held_rows(whole.spaces[i - 1], plan, Region::embedding, static_cast<int>(i)));
  }
}

ObjectiveReport Objectives::report(std::span<const double> sums, std::span<const std::int64_t> counts,
                                   bool training) const {
  ObjectiveReport all;
  for (const Place& place : places_) {
    ObjectiveReport told = place.objective->report(
        settings_, sums.subspan(static_cast<std::size_t>(place.first_sum), static_cast<std::size_t>(place.sums)),
        counts.subspan(place.first_count, place.counts), training);
    if (&place == &places_.front()) {
      all = std::move(told);
    } else {
      all.figures.merge(told.figures);
    }
  }
  return all;
}

}  // namespace orthant
