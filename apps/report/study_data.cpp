#include "apps/report/study_data.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "apps/report/read_json.h"
#include "apps/report/run_data.h"

namespace orthant::report {
namespace {

std::string required_text(const Json& object, const char* key, const std::string& where) {
  std::string text = text_or_empty(object, key, where);
  if (text.empty()) {
    throw ConfigError(fmt::format("{}: '{}' is missing", where, key));
  }
  return text;
}

// At least 1, and 1 where it is missing.
std::int64_t count_at(const Json& object, const char* key, const std::string& where) {
  const double value = number_at(object, key, where).value_or(1);
  if (value != std::floor(value) || value < 1 || value > 9e15) {
    throw ConfigError(fmt::format("{}: '{}' must be a whole number from 1 on, not {}", where, key, value));
  }
  return static_cast<std::int64_t>(value);
}

// Key and value of an object as they are, for people.
std::vector<std::pair<std::string, std::string>> texts_of(const Json& object) {
  std::vector<std::pair<std::string, std::string>> texts;
  if (!object.is_null()) {
    for (const auto& [key, value] : object.items()) {
      if (!value.is_null()) {
        texts.emplace_back(key, value.is_string() ? value.get<std::string>() : dump_json(value, key));
      }
    }
  }
  return texts;
}

std::vector<std::string> texts_at(const Json& object, const std::string& key, const std::string& where) {
  std::vector<std::string> texts;
  for (const Json& entry : list_at(object, key.c_str(), where)) {
    if (!entry.is_string()) {
      throw ConfigError(fmt::format("{}: '{}' must be a list of texts", where, key));
    }
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

// Rows of `width` numbers; one with a null is left out.
std::vector<std::vector<double>> rows_of(const Json& list, std::size_t width, const std::string& where) {
  std::vector<std::vector<double>> rows;
  for (const Json& entry : list) {
    if (!entry.is_array() || entry.size() != width) {
      throw ConfigError(fmt::format("{}: expected lists of {} numbers", where, width));
    }
    std::vector<double> row;
    for (const Json& value : entry) {
      if (const Maybe number = number_of(value, where)) {
        row.push_back(*number);
      }
    }
    if (row.size() == width) {
      rows.push_back(row);
    }
  }
  return rows;
}

// What a step is made of was measured by other steps than its time was: as shares of the step that was timed alone, the
// parts add up to it, and no part is longer than the whole.
void scale_to_the_step(PointData& point) {
  double sum = 0, optimizer = 0;
  for (const auto& [name, seconds] : point.parts) {
    sum += std::max(seconds, 0.0);
    optimizer += name == "optimizer" ? std::max(seconds, 0.0) : 0;
  }
  if (!point.step_seconds) {
    return;
  }
  if (sum > 0 && std::isfinite(sum)) {
    const double factor = *point.step_seconds / sum;
    for (auto& [name, seconds] : point.parts) {
      seconds *= factor;
    }
    point.floor_seconds = point.floor_seconds ? Maybe(*point.floor_seconds * factor) : std::nullopt;
    point.forward_backward_seconds =
        point.forward_backward_seconds ? Maybe((sum - optimizer) * factor) : point.forward_backward_seconds;
  } else if (point.forward_backward_seconds) {
    point.forward_backward_seconds = std::min(*point.forward_backward_seconds, *point.step_seconds);
  }
}

void read_result(const Json& result, const std::string& where, PointData& point) {
  if (result.is_null()) {
    return;
  }
  point.loss = number_at(result, "validation_loss", where);
  point.train_seconds = number_at(result, "train_seconds", where);
  point.step_seconds = number_at(result, "step_seconds", where);
  point.forward_backward_seconds = number_at(result, "forward_backward_seconds", where);
  point.peak_bytes = number_at(result, "peak_bytes", where);
  point.drop_rate = number_at(result, "drop_rate", where);
  point.floor_seconds = number_at(result, "floor_seconds", where);
  const Json& parts = object_at(result, "parts", where);
  if (!parts.is_null()) {
    for (const auto& [name, value] : parts.items()) {
      if (const Maybe seconds = number_of(value, where + ": 'parts." + name + "'")) {
        point.parts.emplace_back(name, *seconds);
      }
    }
  }
  scale_to_the_step(point);
  for (const Json& round : list_at(result, "step_seconds_of_rounds", where)) {
    if (const Maybe seconds = number_of(round, where + ": 'step_seconds_of_rounds'")) {
      point.rounds.push_back(*seconds);
    }
  }
  for (const auto& row : rows_of(list_at(result, "curve", where), 3, where + ": 'curve'")) {
    point.curve.push_back({row[0], row[1], row[2]});
  }
  for (const auto& row : rows_of(list_at(result, "counterfactual", where), 2, where + ": 'counterfactual'")) {
    point.counterfactual.emplace_back(row[0], row[1]);
  }
}

PointData read_point(const Json& json, const std::string& list_entry) {
  PointData point;
  point.id = required_text(json, "id", list_entry);
  const std::string where = list_entry + " ('" + point.id + "')";
  point.size = text_or_empty(json, "size", where);
  point.layout = text_or_empty(json, "layout", where);
  point.status = text_or_empty(json, "status", where);
  point.error = text_or_empty(json, "error", where);
  point.experts = count_at(json, "experts", where);
  point.top_k = count_at(json, "top_k", where);
  point.granularity = count_at(json, "granularity", where);
  point.ranks = count_at(json, "ranks", where);
  point.seed = number_at(json, "seed", where).value_or(1);
  point.capacity_factor = number_at(json, "capacity_factor", where).value_or(0);
  point.lr_factor = number_at(json, "lr_factor", where).value_or(1);
  point.set = texts_at(json, "set", where);
  if (const Json& parameters = object_at(json, "parameters", where); !parameters.is_null()) {
    point.total = number_at(parameters, "total", where);
    point.active = number_at(parameters, "active", where);
  }
  if (const Json& flops = object_at(json, "flops_per_token", where); !flops.is_null()) {
    point.model_flops = number_at(flops, "model", where);
    point.router_flops = number_at(flops, "router", where);
  }
  point.dispatch_bytes = number_at(json, "dispatch_bytes_per_token", where);
  point.tokens = number_at(json, "tokens", where);
  point.steps = number_at(json, "steps", where);
  if (point.done()) {
    read_result(object_at(json, "result", where), where, point);
  }
  return point;
}

LawData read_law(const Json& json, const std::string& where) {
  LawData law;
  law.name = text_or_empty(json, "name", where);
  law.formula = text_or_empty(json, "formula", where);
  for (const Json& entry : list_at(json, "coefficients", where)) {
    law.coefficients.push_back({text_or_empty(entry, "name", where), number_at(entry, "value", where),
                                number_at(entry, "low", where), number_at(entry, "high", where)});
  }
  law.residual_rms = number_at(json, "residual_rms", where);
  law.points = number_at(json, "points", where);
  for (const Json& entry : list_at(json, "leave_one_size_out", where)) {
    law.leave_one_size_out.emplace_back(text_or_empty(entry, "size", where), number_at(entry, "rms_log_error", where));
  }
  for (const Json& entry : list_at(json, "predicted", where)) {
    if (const Maybe loss = number_at(entry, "loss", where)) {
      law.predicted.emplace_back(text_or_empty(entry, "id", where), *loss);
    }
  }
  for (const Json& entry : list_at(json, "curves", where)) {
    auto& curve = law.curves[text_or_empty(entry, "size", where)];
    for (const auto& row : rows_of(list_at(entry, "points", where), 2, where + ": 'curves'")) {
      curve.emplace_back(row[0], row[1]);
    }
  }
  return law;
}

void read_fits(const std::filesystem::path& file, StudyData& study) {
  const Json json = read_json_file(file);
  const std::string where = file.string();
  study.has_fits = true;
  for (const Json& law : list_at(json, "laws", where)) {
    study.laws.push_back(read_law(law, where + ": laws"));
  }
  for (const Json& entry : list_at(json, "speed_up", where)) {
    const std::string here = where + ": speed_up";
    study.speed_ups.push_back({text_or_empty(entry, "id", here), text_or_empty(entry, "twin", here),
                               number_at(entry, "steps", here), number_at(entry, "steps_low", here),
                               number_at(entry, "steps_high", here), number_at(entry, "seconds", here),
                               number_at(entry, "seconds_low", here), number_at(entry, "seconds_high", here)});
  }
  for (const Json& entry : list_at(json, "effective_parameters", where)) {
    const std::string here = where + ": effective_parameters";
    study.effective.push_back({text_or_empty(entry, "id", here), number_at(entry, "value", here),
                               number_at(entry, "low", here), number_at(entry, "high", here)});
  }
  for (const Json& entry : list_at(json, "skipped", where)) {
    study.skipped.emplace_back(text_or_empty(entry, "name", where), text_or_empty(entry, "why", where));
  }
}

// All points are of one text and tokenizer.
std::string unit_of(const std::string& config_toml) {
  try {
    const FlatSettings settings = flat_settings(config_toml, "config_toml of study.json");
    const std::string tokenizer = setting(settings, "data.tokenizer");
    const LossUnit unit = loss_unit({.source = setting(settings, "data.source"),
                                     .tokenizer = tokenizer.empty() ? "bytes" : tokenizer,
                                     .objective = setting(settings, "train.objective")},
                                    {});
    return unit.name.empty() ? "nats per token" : unit.name;
  } catch (const Error&) {  // the page says so among its methods
    return "nats per token";
  }
}

}  // namespace

const PointData* StudyData::find(const std::string& id) const {
  const auto it = std::find_if(points.begin(), points.end(), [&](const PointData& point) { return point.id == id; });
  return it == points.end() ? nullptr : &*it;
}

StudyData read_study(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "study.json";
  const Json json = read_json_file(file);
  const std::string where = file.string();
  const Maybe format = number_at(json, "format", where);
  if (format != Maybe(1)) {
    throw ConfigError(
        fmt::format("{}: 'format' must be 1, found {}", where, format ? fmt::format("{}", *format) : "none"));
  }
  StudyData study;
  study.folder = folder;
  study.name = text_or_empty(json, "name", where);
  study.title = text_or_empty(json, "title", where);
  study.command = text_or_empty(json, "command", where);
  study.version = text_or_empty(json, "version", where);
  study.created = text_or_empty(json, "created", where);
  study.study_toml = text_or_empty(json, "study_toml", where);
  study.config_toml = text_or_empty(json, "config_toml", where);
  study.learning_rate_rule = text_or_empty(json, "learning_rate_rule", where);
  study.metric = text_or_empty(json, "metric", where);
  study.unit = unit_of(study.config_toml);
  study.warnings = texts_at(json, "warnings", where);
  study.seconds = number_at(json, "seconds", where);
  study.machine = texts_of(object_at(json, "machine", where));
  study.text = texts_of(object_at(json, "text", where));
  std::set<std::string> ids;
  const Json& points = list_at(json, "points", where);
  for (std::size_t i = 0; i < points.size(); ++i) {
    study.points.push_back(read_point(points[i], fmt::format("{}: point {}", where, i + 1)));
    if (!ids.insert(study.points.back().id).second) {
      throw ConfigError(fmt::format("{}: '{}' is the id of two points", where, study.points.back().id));
    }
  }
  if (std::filesystem::exists(folder / "fits.json")) {
    read_fits(folder / "fits.json", study);
  }
  return study;
}

}  // namespace orthant::report
