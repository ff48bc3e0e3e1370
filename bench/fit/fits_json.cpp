// fits.json, of study_fits.h.
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/fit/study_fits.h"

namespace orthant {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson number(std::optional<double> value) {
  return value && std::isfinite(*value) ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson law_json(const FittedLaw& law) {
  OrderedJson json = {{"name", law.name}, {"formula", law.formula}, {"coefficients", OrderedJson::array()}};
  for (const Coefficient& c : law.coefficients) {
    json["coefficients"].push_back({{"name", c.name},
                                    {"value", number(c.value)},
                                    {"low", number(c.interval.low)},
                                    {"high", number(c.interval.high)}});
  }
  json["residual_rms"] = number(law.residual_rms);
  json["points"] = law.runs;
  json["leave_one_size_out"] = OrderedJson::array();
  for (const LeftOutSize& left : law.leave_one_size_out) {
    json["leave_one_size_out"].push_back({{"size", left.size}, {"rms_log_error", number(left.rms_log_error)}});
  }
  json["predicted"] = OrderedJson::array();
  for (const Predicted& p : law.predicted) {
    json["predicted"].push_back({{"id", p.id}, {"loss", number(p.loss)}});
  }
  json["curves"] = OrderedJson::array();
  for (const LawCurve& curve : law.curves) {
    OrderedJson points = OrderedJson::array();
    for (const auto& [experts, loss] : curve.points) {
      points.push_back({number(experts), number(loss)});
    }
    json["curves"].push_back({{"size", curve.size}, {"points", points}});
  }
  return json;
}

OrderedJson speed_up_json(const PointSpeedUp& point) {
  const SpeedUp& s = point.speed_up;
  return {{"id", point.id},
          {"twin", point.twin},
          {"steps", number(s.steps)},
          {"steps_low", number(s.steps_interval.low)},
          {"steps_high", number(s.steps_interval.high)},
          {"seconds", number(s.seconds)},
          {"seconds_low", number(s.seconds_interval.low)},
          {"seconds_high", number(s.seconds_interval.high)},
          {"reached_step", number(s.reached_step)},
          {"twin_steps", number(s.twin_steps)},
          {"target_loss", number(s.target_loss)},
          {"resampled", name_of(s.resampled)}};
}

}  // namespace

std::string to_json(const Fits& fits) {
  OrderedJson json = {{"laws", OrderedJson::array()},
                      {"speed_up", OrderedJson::array()},
                      {"effective_parameters", OrderedJson::array()},
                      {"skipped", OrderedJson::array()}};
  for (const FittedLaw& law : fits.laws) {
    json["laws"].push_back(law_json(law));
  }
  for (const PointSpeedUp& point : fits.speed_ups) {
    json["speed_up"].push_back(speed_up_json(point));
  }
  for (const EffectiveParameters& e : fits.effective_parameters) {
    json["effective_parameters"].push_back(
        {{"id", e.id}, {"value", number(e.value)}, {"low", number(e.interval.low)}, {"high", number(e.interval.high)}});
  }
  for (const Skipped& s : fits.skipped) {
    json["skipped"].push_back({{"name", s.name}, {"why", s.why}});
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace orthant
