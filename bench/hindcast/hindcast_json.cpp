#include <nlohmann/json.hpp>

#include "bench/hindcast/hindcast.h"

namespace orthant::hindcast {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_lines(const std::vector<ErrorLine>& lines) {
  OrderedJson list = OrderedJson::array();
  for (const ErrorLine& line : lines) {
    list.push_back({{"name", line.name},
                    {"rows", line.rows},
                    {"median", line.median},
                    {"mean", line.mean},
                    {"p90", line.p90},
                    {"largest", line.largest},
                    {"bias", line.bias},
                    {"coverage", line.coverage ? OrderedJson(*line.coverage) : OrderedJson(nullptr)}});
  }
  return list;
}

OrderedJson optional_number(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

}  // namespace

std::string json_of(const Hindcast& result) {
  OrderedJson json = {{"step_time", json_lines(result.sources)},
                      {"held_out", json_lines(result.held)},
                      {"goals", json_lines(result.summary)},
                      {"peak_memory", json_lines(result.memory)},
                      {"mean_regret", result.mean_regret()}};
  json["sweeps"] = OrderedJson::array();
  for (const SweepLine& sweep : result.sweeps) {
    json["sweeps"].push_back({{"name", sweep.name},
                              {"layouts", sweep.layouts},
                              {"chosen", sweep.chosen},
                              {"best", sweep.best},
                              {"regret", sweep.regret},
                              {"computed", sweep.computed}});
  }
  json["does_not_fit"] = {{"rows", result.out_of_memory.rows},
                          {"right", result.out_of_memory.right},
                          {"missed", result.out_of_memory.missed},
                          {"false_alarms", result.out_of_memory.false_alarms}};
  json["rows"] = OrderedJson::array();
  for (const Prediction& one : result.predictions) {
    json["rows"].push_back({{"id", one.row.id},
                            {"source", one.row.source},
                            {"label", one.row.label},
                            {"machine", one.row.machine},
                            {"measured_seconds", optional_number(one.row.seconds)},
                            {"seconds", one.seconds},
                            {"low", one.seconds / one.ratio},
                            {"high", one.seconds * one.ratio},
                            {"measured_peak_bytes", optional_number(one.row.peak_bytes)},
                            {"peak_bytes", one.row.peak_bytes ? OrderedJson(one.peak_bytes) : OrderedJson(nullptr)},
                            {"fits", one.row.told_memory ? OrderedJson(one.fits) : OrderedJson(nullptr)}});
  }
  json["not_scored"] = OrderedJson::array();
  for (const NotScored& row : result.not_scored) {
    json["not_scored"].push_back({{"id", row.id}, {"source", row.source}, {"why", row.why}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace orthant::hindcast
