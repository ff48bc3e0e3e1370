#include "bench/study/card.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <orthant/error.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "bench/study/point_run.h"
#include "core/base/text_file.h"
#include "core/checkpoint/disk.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int card_format = 1;

std::string processor() {
  std::istringstream lines(read_text_file("/proc/cpuinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("model name")) {
      const std::size_t colon = line.find(": ");
      return colon == std::string::npos ? "" : line.substr(colon + 2);
    }
  }
  return "";
}

std::string system_name() {
  std::istringstream lines(read_text_file("/etc/os-release").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::string key = "PRETTY_NAME=\"";
    if (line.starts_with(key)) {
      return line.substr(key.size(), line.size() - key.size() - 1);
    }
  }
  utsname name{};
  uname(&name);
  return name.sysname;
}

Json machine() {
  return {{"cpu", processor()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE)},
          {"os", system_name()},
          {"compiler", __VERSION__}};
}

Json card_of(const GridPoint& point) {
  return {{"id", point.id},
          {"size", point.size},
          {"experts", point.experts},
          {"top_k", point.top_k},
          {"capacity_factor", point.capacity_factor},
          {"lr_factor", point.lr_factor},
          {"granularity", point.granularity},
          {"layout", point.layout},
          {"ranks", point.ranks},
          {"seed", point.seed},
          {"set", point.set},
          {"parameters", {{"total", point.total_parameters}, {"active", point.active_parameters}}},
          {"flops_per_token", {{"model", point.model_flops}, {"router", point.router_flops}}},
          {"dispatch_bytes_per_token", point.dispatch_bytes},
          {"tokens", point.tokens},
          {"steps", point.steps},
          {"status", "waiting"},
          {"error", ""},
          {"result", nullptr}};
}

// What is wrong with the result of a point that is done; empty: nothing.
std::string damage_of(const Json& result) {
  if (!result.is_object()) {
    return fmt::format("it is done, and its 'result' is {}", result.dump());
  }
  const Json loss = result.value("validation_loss", Json()), curve = result.value("curve", Json()),
             seconds = result.value("step_seconds", Json());
  if (!is_loss(loss)) {
    return fmt::format("its 'validation_loss' is {}, expected a number above 0 and up to {:g}", loss.dump(),
                       largest_loss);
  }
  if (!curve.is_array() || curve.empty()) {
    return fmt::format("its 'curve' is {}, expected a list of [step, tokens, validation_loss]", curve.dump());
  }
  for (const Json& row : curve) {
    if (!row.is_array() || row.size() != 3 || !row[0].is_number() || !row[1].is_number() || !is_loss(row[2])) {
      return fmt::format("its 'curve' has {}, expected [step, tokens, validation_loss]", row.dump());
    }
  }
  if (curve.back()[2] != loss) {
    return fmt::format("its 'curve' ends with {}, and its 'validation_loss' is {}", curve.back()[2].dump(),
                       loss.dump());
  }
  if (!seconds.is_null() && !(seconds.is_number() && seconds.get<double>() > 0)) {
    return fmt::format("its 'step_seconds' is {}, expected a number above 0 or null", seconds.dump());
  }
  return "";
}

// Of the text that a card's points were trained on; empty where it does not say.
std::string hash_in(const Json& card) {
  const auto text = card.find("text");
  return text != card.end() && text->is_object() ? text->value("hash", "") : "";
}

// Members that a card need not have, and that have one type where it has them.
void check_types(const Json& card, const std::string& file) {
  const auto refuse = [&](const char* what, const Json& found, const char* expected) {
    throw ConfigError(fmt::format("'{}': its {} is {}, expected {}", file, what, found.dump(), expected));
  };
  if (const Json text = card.value("text", Json::object()); text.is_object()) {
    if (const Json hash = text.value("hash", Json("")); !hash.is_string()) {
      refuse("'hash' of 'text'", hash, "a text");
    }
  }
  const Json overrides = card.value("overrides", Json::array());
  const auto is_text = [](const Json& one) { return one.is_string(); };
  if (!overrides.is_array() || !std::all_of(overrides.begin(), overrides.end(), is_text)) {
    refuse("'overrides'", overrides, "a list of texts");
  }
}

Json parsed(const fs::path& file) {
  std::optional<std::string> text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
  if (!text) {
    throw ConfigError(fmt::format("'{}': there is no such file", file.string()));
  }
  // In the order of its keys, which apps/report/read_json.h does not keep: the card is written again.
  Json document = Json::parse(*text, nullptr, false);
  const bool good = document.is_object() && document.value("format", Json()) == Json(card_format) &&
                    document.contains("points") && document["points"].is_array() && document.contains("study_toml") &&
                    document["study_toml"].is_string() && document.contains("config_toml") &&
                    document["config_toml"].is_string();
  if (!good) {
    throw ConfigError(fmt::format("'{}' is no card of a study (format {})", file.string(), card_format));
  }
  check_types(document, file.string());
  return document;
}

}  // namespace

Json describe_text(const Settings& settings) {
  if (settings.data.path.empty()) {
    return {{"path", settings.data.source}, {"bytes", 0}, {"hash", ""}};
  }
  std::vector<std::uint64_t> sums;
  std::uint64_t bytes = 0;
  for (const std::string& path : settings.data.path) {
    const FileChecksum one = checksum_of_file(path);
    sums.push_back(one.checksum);
    bytes += one.bytes;
  }
  for (const std::string& path : settings.data.validation_path) {  // losses are of these texts
    sums.push_back(checksum_of_file(path).checksum);
  }
  const std::uint64_t hash = sums.size() == 1 ? sums.front() : checksum_of(std::as_bytes(std::span(sums)));
  return {{"path", fmt::format("{}", fmt::join(settings.data.path, ", "))},
          {"bytes", bytes},
          {"hash", fmt::format("xxh3:{:016x}", hash)}};
}

StudyCard::StudyCard(const fs::path& folder, const StudyFile& study, const std::vector<GridPoint>& points,
                     const StudyOrigin& origin)
    : file_(folder / "study.json") {
  document_ = {{"format", card_format},
               {"name", study.name},
               {"title", study.title},
               {"command", origin.command},
               {"version", origin.version},
               {"created", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
               {"seconds", 0.0},
               {"machine", machine()},
               {"study_toml", study.text},
               {"config_toml", origin.config},
               {"config", origin.values},
               {"overrides", origin.overrides},
               {"warnings", origin.warnings},
               {"text", origin.text},
               {"learning_rate_rule", rule_text(study)},
               {"metric", "validation_loss"},
               {"points", Json::array()}};
  for (const GridPoint& point : points) {
    document_["points"].push_back(card_of(point));
  }
  save();
}

StudyCard::StudyCard(const fs::path& folder) : file_(folder / "study.json"), document_(parsed(file_)) {
  for (const Json& point : document_["points"]) {
    const bool good = point.is_object() && point.contains("id") && point["id"].is_string() &&
                      point.contains("status") && point["status"].is_string() && point.contains("set") &&
                      point.contains("result");
    if (!good) {
      throw ConfigError(fmt::format("'{}': a point of it is damaged", file_.string()));
    }
    const std::string id = point["id"], state = point["status"];
    const std::string damage = state == "done" ? damage_of(point["result"])
                               : state != "waiting" && state != "failed"
                                   ? fmt::format("its 'status' is \"{}\", expected waiting, done or failed", state)
                                   : "";
    if (!damage.empty()) {
      throw ConfigError(
          fmt::format("'{}': point {} is damaged: {}. Set its 'status' to \"waiting\" and its 'result' to "
                      "null to train it again",
                      file_.string(), id, damage));
    }
  }
  const Json side_by_side = document_.value("side_by_side", Json{{"places", 1}});
  if (!side_by_side.is_object() || !side_by_side.value("places", Json()).is_number_integer() ||
      side_by_side["places"] < 1) {
    throw ConfigError(fmt::format("'{}': its 'side_by_side' is {}, expected a number of 'places' from 1 on; remove it",
                                  file_.string(), side_by_side.dump()));
  }
  if (!document_.contains("seconds") || !document_["seconds"].is_number()) {
    throw ConfigError(fmt::format("'{}': it does not say how many seconds it has taken", file_.string()));
  }
}

void StudyCard::require_same(const std::vector<GridPoint>& points, const StudyOrigin& now) const {
  const std::string advice = fmt::format(
      "'{}' was written before the first run and stays as it is: restore the study's file, or give it "
      "another name",
      file_.string());
  const std::string hash = now.text.value("hash", ""), had = hash_in(document_);
  if (hash != had) {
    throw ConfigError(
        fmt::format("the study's text is another one now: its hash is {}, and was {}. {}", hash, had, advice));
  }
  const Json changes = Json::diff(document_.value("config", now.values), now.values);  // whatever the order of keys
  if (!changes.empty()) {
    throw ConfigError(fmt::format("the study's configuration has changed: {}. {}", changes.front().dump(), advice));
  }
  if (points.size() != size()) {
    throw ConfigError(fmt::format("the study has {} points now, and had {}. {}", points.size(), size(), advice));
  }
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].id != id(i)) {
      throw ConfigError(
          fmt::format("point {} of the study is {} now, and was {}. {}", i + 1, points[i].id, id(i), advice));
    }
    if (Json(points[i].set) != document_["points"][i]["set"]) {
      throw ConfigError(fmt::format("point {} of the study is set otherwise now: {}, and was {}. {}", points[i].id,
                                    Json(points[i].set).dump(), document_["points"][i]["set"].dump(), advice));
    }
    const Json planned = card_of(points[i]);
    for (const auto& [key, value] : planned.items()) {
      const Json had_value = document_["points"][i].value(key, Json());
      const bool of_the_run = key == "status" || key == "error" || key == "result";
      if (!of_the_run && !Json::diff(had_value, value).empty()) {
        throw ConfigError(fmt::format("point {} of the study has the {} {} now, and had {}. {}", points[i].id, key,
                                      value.dump(), had_value.dump(), advice));
      }
    }
  }
}

PointStatus StudyCard::status(std::size_t point) const {
  const std::string text = document_["points"][point]["status"];
  return text == "done" ? PointStatus::done : text == "failed" ? PointStatus::failed : PointStatus::waiting;
}

void StudyCard::set_done(std::size_t point, const Json& result) {
  Json& one = document_["points"][point];
  one["status"] = "done";
  one["error"] = "";
  one["result"] = result;
  save();
}

void StudyCard::set_failed(std::size_t point, const std::string& why) {
  document_["points"][point]["status"] = "failed";
  document_["points"][point]["error"] = why;
  save();
}

void StudyCard::set_waiting(std::size_t point) {
  document_["points"][point]["status"] = "waiting";
  document_["points"][point]["error"] = "";
  save();
}

void StudyCard::add_to_result(std::size_t point, const Json& members) {
  document_["points"][point]["result"].update(members);
  save();
}

void StudyCard::set(const std::string& key, const Json& value) {
  document_[key] = value;
  save();
}

void StudyCard::save() const {
  const Disk disk;
  disk.replace_file(file_, document_.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  disk.sync_folder(file_.parent_path());
}

UnpackedCard unpack_card(const fs::path& file) {
  const Json document = parsed(file);
  UnpackedCard card{document["study_toml"], document["config_toml"], hash_in(document)};
  for (const Json& one : document.value("overrides", Json::array())) {
    card.overrides.push_back(one.get<std::string>());
  }
  return card;
}

}  // namespace orthant
