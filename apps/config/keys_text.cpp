#include "apps/config/keys_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/config/registry.h"
#include "core/config/value_text.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Value& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

Json element_schema(const KeySpec& spec, const char* type) {
  Json schema{{"type", type}};
  if (spec.minimum) {
    schema["minimum"] = *spec.minimum;
  }
  if (spec.maximum) {
    schema["maximum"] = *spec.maximum;
  }
  if (!spec.choices.empty()) {
    schema["enum"] = spec.choices;
  }
  if (spec.bytes) {
    schema["type"] = {"string", "integer"};
  }
  return schema;
}

Json key_schema(const KeySpec& spec) {
  static constexpr const char* types[] = {"boolean", "integer", "number", "string", "integer", "number", "string"};
  const std::size_t index = spec.default_value.index();
  Json schema = element_schema(spec, types[index]);
  if (index >= 4) {
    schema = Json{{"anyOf", {Json{{"type", "array"}, {"items", schema}}, schema}}};  // a single value is a list of one
  }
  schema["description"] = spec.help;
  if (!spec.required) {
    schema["default"] = to_json(spec.default_value);
  }
  return schema;
}

Json table_schema() {
  return Json{{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
}

// The kinds of a noun that the core brings.
std::vector<std::string> built_in_names(const std::string& noun) {
  return built_in_catalogue()->names(noun);
}

std::string range_text(const KeySpec& spec) {
  const auto number = [](double value) {
    constexpr double two_to_the_40 = 1099511627776;
    return value == two_to_the_40                       ? "2^40"
           : value < 9e15 && value == std::floor(value) ? fmt::format("{}", static_cast<std::int64_t>(value))
                                                        : fmt::format("{}", value);
  };
  if (!spec.choices.empty()) {
    return fmt::format("`{}`", fmt::join(spec.choices, "`, `"));
  }
  if (spec.bytes) {
    return "a number of bytes";
  }
  if (spec.minimum && spec.maximum) {
    return fmt::format("{} to {}", number(*spec.minimum), number(*spec.maximum));
  }
  return spec.minimum ? fmt::format("at least {}", number(*spec.minimum)) : "";
}

std::string key_line(const KeySpec& spec, const std::string& allowed) {
  return fmt::format("| `{}` | {} | `{}` | {} | {} |\n", spec.name, type_name(spec.default_value),
                     toml_text(spec.default_value), allowed, spec.help);
}

}  // namespace

std::string schema_json(const PluginKeyList& plugins, const Catalogue& catalogue) {
  Json schema = table_schema();
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "Orthant configuration";
  Json& tables = schema["properties"];
  const Json file{{"type", "string"}};
  tables["extends"] = Json{{"anyOf", {Json{{"type", "array"}, {"items", file}}, file}},
                           {"description", "Files whose values this one starts from."}};
  for (const CoreKey& key : declared_keys(catalogue)) {
    if (!tables.contains(key.table)) {
      tables[key.table] = table_schema();
    }
    Json& property = tables[key.table]["properties"][key.spec.name];
    property = key_schema(key.spec);
    if (!key.noun.empty()) {
      property["examples"] = built_in_names(key.noun);
    }
  }
  const KeySpec path{"path", std::string(), "The plugin's library; empty: found by its name."};
  Json any{{"type", "object"}, {"properties", {{"path", key_schema(path)}}}};
  Json known = Json::object();
  for (const auto& [name, keys] : plugins) {
    known[name] = table_schema();
    known[name]["properties"]["path"] = key_schema(path);
    for (const KeySpec& spec : keys) {
      known[name]["properties"][spec.name] = key_schema(spec);
    }
  }
  tables["plugins"] = Json{{"type", "object"}, {"properties", known}, {"additionalProperties", any}};
  return schema.dump(2) + "\n";
}

std::string key_row(const KeySpec& spec) {
  return key_line(spec, range_text(spec));
}

std::string keys_markdown(const Catalogue& catalogue) {
  std::string text;
  std::string table;
  for (const CoreKey& key : declared_keys(catalogue)) {
    if (key.table != table) {
      table = key.table;
      text +=
          fmt::format("{}### `[{}]`\n\n| key | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n",
                      text.empty() ? "" : "\n", table);
    }
    text += key.noun.empty()
                ? key_row(key.spec)
                : key_line(key.spec, fmt::format("`{}`, a plugin's", fmt::join(built_in_names(key.noun), "`, `")));
  }
  return text;
}

}  // namespace orthant
