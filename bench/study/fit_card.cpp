#include "bench/study/fit_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "bench/fit/study_fits.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

std::string variant_of(const Json& point) {
  std::string text = fmt::format("top-{}", point["top_k"].get<std::int64_t>());
  if (point["granularity"] != 1) {
    text += fmt::format(", granularity {}", point["granularity"].get<std::int64_t>());
  }
  if (point["capacity_factor"] != 0.0) {
    text += fmt::format(", capacity factor {:g}", point["capacity_factor"].get<double>());
  }
  return text;
}

// All but the learning rate and the seed.
std::string shape_of(const Json& point) {
  return fmt::format("{}, {} experts, {}, {}", point["size"].get<std::string>(), point["experts"].get<std::int64_t>(),
                     variant_of(point), point["layout"].get<std::string>());
}

// Of the dense twin of each size; where a study has none, of what a token meets in a mixture.
std::map<std::string, double> parameters_by_size(const Json& points) {
  std::map<std::string, double> parameters;
  for (const Json& point : points) {
    const std::string size = point["size"];
    const double active = point["parameters"]["active"];
    if (point["experts"] == 1 || !parameters.contains(size)) {
      parameters[size] = active;
    }
  }
  return parameters;
}

double lr_factor_of(const Json& point) {
  return point.value("lr_factor", 1.0);
}

// Of points that differ in their learning rate and seed alone, the rate of the lowest mean loss, by what they share.
std::map<std::string, double> best_factors(const StudyCard& card) {
  const Json& points = card.document()["points"];
  std::map<std::string, std::map<double, std::pair<double, int>>> losses;
  for (std::size_t i = 0; i < card.size(); ++i) {
    if (card.status(i) == PointStatus::done) {
      auto& [sum, count] = losses[shape_of(points[i])][lr_factor_of(points[i])];
      sum += points[i]["result"]["validation_loss"].get<double>();
      ++count;
    }
  }
  std::map<std::string, double> best;
  for (const auto& [shape, by_factor] : losses) {
    best[shape] = std::min_element(by_factor.begin(), by_factor.end(), [](const auto& a, const auto& b) {
                    return a.second.first / a.second.second < b.second.first / b.second.second;
                  })->first;
  }
  return best;
}

}  // namespace

std::string fits_of(const StudyCard& card, std::int64_t resamples) {
  const Json& points = card.document()["points"];
  const std::map<std::string, double> parameters = parameters_by_size(points);
  const std::map<std::string, double> factors = best_factors(card);
  std::vector<StudyPoint> runs;
  for (std::size_t i = 0; i < card.size(); ++i) {
    const Json& point = points[i];
    if (card.status(i) != PointStatus::done || point["layout"] != points[0]["layout"] ||
        lr_factor_of(point) != factors.at(shape_of(point))) {
      continue;
    }
    const Json& result = point["result"];
    StudyPoint run;
    run.id = point["id"];
    run.size = point["size"];
    run.variant = variant_of(point);
    run.parameters = parameters.at(run.size);
    run.experts = point["experts"];
    run.seed = point["seed"].get<std::uint64_t>();
    run.tokens = point["tokens"];
    const Json seconds = result.value("step_seconds", Json());
    run.seconds_per_step = seconds.is_number() ? seconds.get<double>() : 0;
    for (const Json& entry : result["curve"]) {
      run.curve.push_back({entry[0], entry[2]});
    }
    runs.push_back(std::move(run));
  }
  FitOptions options;
  options.bootstrap.resamples = static_cast<int>(resamples);
  return to_json(fit_study(runs, options));
}

}  // namespace orthant
