#include "core/run/run_text_rules.h"

#include <fmt/ranges.h>
#include <orthant/error.h>

#include <limits>

#include "core/base/json.h"
#include "core/base/text_file.h"
#include "core/checkpoint/disk.h"
#include "core/run/starting_weights.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* with_ends[] = {"generation_config.json", "config.json"};
constexpr const char* ends_key = "eos_token_id";

// A JSON object, or null where there is no such file.
Json read_object(const fs::path& path) {
  const std::optional<std::string> text = read_text_file(path);
  if (!text.has_value()) {
    return {};
  }
  Json json = parse_json(std::as_bytes(std::span(*text)), fmt::format("'{}'", path.string()));
  require(json.is_object(), "'{}': a JSON object was expected", path.string());
  return json;
}

bool has(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) && !json.at(key).is_null();
}

// One, or a list.
Json list_of(const Json& value) {
  return value.is_array() ? value : Json::array({value});
}

std::vector<std::int32_t> ids_of(const Json& value, const char* key, const fs::path& path) {
  std::vector<std::int32_t> ids;
  for (const Json& id : list_of(value)) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
      throw ConfigError(fmt::format("'{}': {} = {}: expected the id of a token, or a list of ids; {} is none",
                                    path.string(), key, value.dump(), id.dump()));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::vector<std::string> texts_of(const Json& value, const char* key, const fs::path& path) {
  std::vector<std::string> texts;
  for (const Json& text : list_of(value)) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      throw ConfigError(fmt::format("'{}': {} = {}: expected a text, or a list of texts", path.string(), key,
                                    value.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

}  // namespace

std::string file_with_ends(const fs::path& folder) {
  for (const char* name : with_ends) {
    if (has(read_object(folder / name), ends_key)) {
      return name;
    }
  }
  return "";
}

TextRules published_text_rules(const fs::path& folder) {
  TextRules rules;
  if (const std::string name = file_with_ends(folder); !name.empty()) {
    rules.end_ids = ids_of(read_object(folder / name).at(ends_key), ends_key, folder / name);
  }
  const fs::path generation = folder / with_ends[0];
  if (const Json json = read_object(generation); has(json, "stop_strings")) {
    rules.end_texts = texts_of(json.at("stop_strings"), "stop_strings", generation);
  }
  return rules;
}

TextRules text_rules_in(const fs::path& run) {
  const fs::path path = run / text_rules_name;
  const Json json = read_object(path);
  if (json.is_null()) {
    return published_text_rules(run / pretrained_folder);
  }
  TextRules rules;
  if (has(json, "begins_with_bos")) {
    require(json.at("begins_with_bos").is_boolean(), "'{}': begins_with_bos must be true or false", path.string());
    rules.bos = json.at("begins_with_bos").get<bool>();
  }
  if (has(json, "end_ids")) {
    rules.end_ids = ids_of(json.at("end_ids"), "end_ids", path);
  }
  if (has(json, "end_texts")) {
    rules.end_texts = texts_of(json.at("end_texts"), "end_texts", path);
  }
  if (has(json, "special")) {
    rules.special = texts_of(json.at("special"), "special", path);
  }
  if (has(json, "chat_template")) {
    rules.chat_template = text_at(json, "chat_template", fmt::format("'{}'", path.string()));
  }
  return rules;
}

void require_ends_within(const TextRules& rules, std::int64_t vocabulary, const std::string& where) {
  for (const std::int32_t id : rules.end_ids) {
    if (id >= vocabulary) {
      throw ConfigError(fmt::format(
          "{}: {} = {} ends texts, and {} is no token of the model, whose {} ids are 0 to {}: write the ids that end "
          "its texts there, or leave the key out, and the tokenizer's end of text does",
          where, ends_key,
          rules.end_ids.size() == 1 ? fmt::to_string(id) : fmt::format("[{}]", fmt::join(rules.end_ids, ", ")), id,
          vocabulary, vocabulary - 1));
    }
  }
}

void keep_text_rules(const TextRules& rules, const fs::path& run) {
  const Disk disk;
  if (const std::string text = to_json(rules); !text.empty()) {
    disk.replace_file(run / text_rules_name, text);
  } else if (fs::exists(run / text_rules_name)) {
    disk.remove_all(run / text_rules_name);
  }
}

std::string to_json(const TextRules& rules) {
  if (rules.empty()) {
    return "";
  }
  nlohmann::ordered_json json = {{"format", 1}};
  if (rules.bos.has_value()) {
    json["begins_with_bos"] = *rules.bos;
  }
  json["end_ids"] = rules.end_ids;
  json["end_texts"] = rules.end_texts;
  json["special"] = rules.special;
  if (!rules.chat_template.empty()) {
    json["chat_template"] = rules.chat_template;
  }
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace orthant
