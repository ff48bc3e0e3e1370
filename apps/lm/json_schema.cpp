#include "apps/lm/json_schema.h"

#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "apps/lm/json_text.h"
#include "apps/lm/schema_graph.h"
#include "core/base/ordered_json.h"

namespace orthant {
namespace {

using Id = JsonSchema::Id;
using Kind = JsonSchema::Kind;
using Node = JsonSchema::Node;

constexpr std::size_t most_nodes = 5000, most_alternatives = 64;
constexpr int never = JsonText::most_levels + 1;  // levels of a value that cannot end

constexpr std::string_view annotations[] = {"title",       "description", "default",  "examples",
                                            "$schema",     "$id",         "$comment", "$defs",
                                            "definitions", "deprecated",  "readOnly", "writeOnly"};

bool is_type(const OrderedJson& value, std::string_view type) {
  return (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
         (type == "null" && value.is_null()) || (type == "number" && value.is_number()) ||
         (type == "integer" && value.is_number_integer());
}

bool writable(const std::string& object) {
  JsonText text;
  return text.add(object) && text.whole();
}

class Reader {
 public:
  Reader(const OrderedJson& schema, const std::string& where) : schema_(schema), where_(where) {
    root = reference("#", where);
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const auto [id, target] = waiting_[i];
      const std::string path = paths_[id];  // more come meanwhile
      fill(id, *target, path);
    }
    flatten();
    merge_equal_alternatives(nodes);
    measure_levels(nodes, never);
    const Node& top = nodes[root];
    if (!std::all_of(top.of.begin(), top.of.end(), [&](Id id) { return nodes[id].kind == Kind::object; })) {
      refuse(where, "is no object, and an answer is one: give it \"type\": \"object\"");
    }
    if (top.levels >= never) {
      refuse(where, "asks for objects in objects without an end, or for more than {} levels", JsonText::most_levels);
    }
  }

  std::vector<Node> nodes;
  Id root = 0;

 private:
  template <class... Args>
  [[noreturn]] void refuse(const std::string& path, fmt::format_string<Args...> format, Args&&... args) const {
    throw ConfigError(fmt::format("'{}' {}", path, fmt::format(format, std::forward<Args>(args)...)));
  }

  static std::string shown(const OrderedJson& value) {
    const std::string text = value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 60) + "..." : text;
  }

  Id add(const std::string& path) {
    if (nodes.size() == most_nodes) {
      refuse(where_, "has more than {} schemas in it", most_nodes);
    }
    nodes.emplace_back();
    paths_.push_back(path);
    return static_cast<Id>(nodes.size() - 1);
  }

  Id make(const OrderedJson& schema, const std::string& path) {
    const Id id = add(path);
    fill(id, schema, path);
    return id;
  }

  // What is referred to is read later: it may refer to whatever refers to it.
  Id reference(const std::string& to, const std::string& path) {
    if (const auto known = known_.find(to); known != known_.end()) {
      return known->second;
    }
    const OrderedJson* target = nullptr;
    try {
      const OrderedJson::json_pointer pointer(to.substr(1));
      target = to.starts_with("#") && schema_.contains(pointer) ? &schema_.at(pointer) : nullptr;
    } catch (const OrderedJson::exception&) {  // no pointer
    }
    if (target == nullptr) {
      refuse(path, "is \"{}\": expected \"#\", or a place in this schema such as \"#/$defs/NAME\"", to);
    }
    const Id id = add(to == "#" ? where_ : where_ + " " + to);
    known_[to] = id;
    waiting_.emplace_back(id, target);
    return id;
  }

  void refuse_others(const OrderedJson& schema, const std::string& path, std::vector<std::string_view> followed) const {
    for (const auto& item : schema.items()) {
      const std::string& key = item.key();
      if (std::find(followed.begin(), followed.end(), key) == followed.end() &&
          std::find(std::begin(annotations), std::end(annotations), key) == std::end(annotations)) {
        refuse(path, "has '{}', which is not followed here: beside annotations there may be {}",
               key.size() > 60 ? key.substr(0, 60) + "..." : key, fmt::join(followed, ", "));
      }
    }
  }

  void fill(Id id, const OrderedJson& schema, const std::string& path) {
    if (!schema.is_object()) {
      refuse(path, "is {}: expected a schema, an object", shown(schema));
    }
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      refuse_others(schema, path, {"$ref"});
      if (!ref->is_string() || ref->get_ref<const std::string&>().empty()) {
        refuse(path + ".$ref", "is {}: expected \"#/$defs/NAME\"", shown(*ref));
      }
      const Id target = reference(ref->get<std::string>(), path + ".$ref");
      nodes[id].of = {target};
    } else if (const auto any = schema.find("anyOf"); any != schema.end()) {
      refuse_others(schema, path, {"anyOf"});
      if (!any->is_array() || any->empty()) {
        refuse(path + ".anyOf", "is {}: expected a list of schemas", shown(*any));
      }
      std::vector<Id> of;
      for (const OrderedJson& one : *any) {
        of.push_back(make(one, fmt::format("{}.anyOf[{}]", path, of.size())));
      }
      nodes[id].of = of;
    } else if (schema.contains("enum") || schema.contains("const")) {
      refuse_others(schema, path, {"type", "enum", "const"});
      fill_texts(id, schema, path);
    } else {
      fill_types(id, schema, path);
    }
  }

  std::vector<std::string> types_of(const OrderedJson& schema, const std::string& path) const {
    const OrderedJson& type = schema.at("type");
    const OrderedJson list = type.is_array() ? type : OrderedJson::array({type});
    std::vector<std::string> types;
    for (const OrderedJson& one : list) {
      const std::string name = one.is_string() ? one.get<std::string>() : "";
      constexpr std::string_view known[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
      if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
        refuse(path + ".type", "is {}: expected {}, or a list of them", shown(type), fmt::join(known, ", "));
      }
      types.push_back(name);
    }
    if (types.empty()) {
      refuse(path + ".type", "is an empty list");
    }
    return types;
  }

  void fill_texts(Id id, const OrderedJson& schema, const std::string& path) {
    const char* const key = schema.contains("enum") ? "enum" : "const";
    const std::string place = fmt::format("{}.{}", path, key);
    const OrderedJson list = schema.contains("enum") ? schema["enum"] : OrderedJson::array({schema["const"]});
    if (!list.is_array()) {
      refuse(place, "is {}: expected a list", shown(list));
    }
    const std::vector<std::string> types =
        schema.contains("type") ? types_of(schema, path) : std::vector<std::string>();
    std::set<std::string> texts;
    for (const OrderedJson& value : list) {
      if (value.is_structured()) {
        refuse(place, "holds {}: texts, numbers, true, false and null are followed", shown(value));
      }
      const bool fits = types.empty() || std::any_of(types.begin(), types.end(),
                                                     [&](const std::string& type) { return is_type(value, type); });
      if (!fits || (schema.contains("const") && value != schema["const"])) {
        continue;
      }
      // A whole number that no integer holds was rounded when it was read.
      const bool rounded = value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
      const std::string text = value.dump();
      if (rounded || !writable("{\"\":" + text + "}")) {
        refuse(place, "holds {}: numbers have at most 18 digits here, exponents 2, and are below 2^63", shown(value));
      }
      texts.insert(text);
    }
    if (texts.empty()) {
      refuse(place, "leaves no value{}", types.empty() ? "" : " of 'type'");
    }
    nodes[id].kind = Kind::text;
    nodes[id].texts.assign(texts.begin(), texts.end());
  }

  void fill_types(Id id, const OrderedJson& schema, const std::string& path) {
    if (!schema.contains("type")) {
      refuse_others(schema, path, {"type", "enum", "const", "anyOf", "$ref"});
      refuse(path, "says nothing of its values: expected one of type, enum, const, anyOf, $ref");
    }
    const std::vector<std::string> types = types_of(schema, path);
    std::vector<std::string_view> followed = {"type"};
    if (std::find(types.begin(), types.end(), "object") != types.end()) {
      followed.insert(followed.end(), {"properties", "required", "additionalProperties"});
    }
    if (std::find(types.begin(), types.end(), "array") != types.end()) {
      followed.insert(followed.end(), {"items", "minItems", "maxItems"});
    }
    refuse_others(schema, path, followed);
    if (types.size() == 1) {
      fill_type(id, types.front(), schema, path);
      return;
    }
    std::vector<Id> of;
    for (const std::string& type : types) {
      of.push_back(add(path));
      fill_type(of.back(), type, schema, path);
    }
    nodes[id].of = of;
  }

  void fill_type(Id id, const std::string& type, const OrderedJson& schema, const std::string& path) {
    if (type == "object") {
      fill_object(id, schema, path);
    } else if (type == "array") {
      fill_array(id, schema, path);
    } else if (type == "boolean" || type == "null") {
      nodes[id].kind = Kind::text;
      nodes[id].texts = type == "null" ? std::vector<std::string>{"null"} : std::vector<std::string>{"false", "true"};
    } else {
      nodes[id].kind = type == "string" ? Kind::string : type == "number" ? Kind::number : Kind::integer;
    }
  }

  void fill_object(Id id, const OrderedJson& schema, const std::string& path) {
    const auto more = schema.find("additionalProperties");
    if (more != schema.end() && *more != false) {
      refuse(path + ".additionalProperties", "is {}: false is followed, for an answer has the named properties alone",
             shown(*more));
    }
    const auto named = schema.find("properties");
    if (named == schema.end() && more == schema.end()) {
      refuse(path, "is an object without 'properties': name them");
    }
    const OrderedJson properties = named == schema.end() ? OrderedJson::object() : *named;
    if (!properties.is_object()) {
      refuse(path + ".properties", "is {}: expected an object", shown(properties));
    }
    const OrderedJson required = schema.value("required", OrderedJson::array());
    if (!required.is_array()) {
      refuse(path + ".required", "is {}: expected a list of names", shown(required));
    }
    for (const OrderedJson& name : required) {
      if (!name.is_string() || !properties.contains(name.get<std::string>())) {
        refuse(path + ".required", "holds {}: expected names of 'properties'", shown(name));
      }
    }
    Node made;
    made.kind = Kind::object;
    std::vector<std::pair<std::string, std::size_t>> keys;
    for (const auto& [name, value] : properties.items()) {
      const std::string key = OrderedJson(name).dump();
      if (!writable("{" + key + ":0}")) {
        refuse(path + ".properties", "has a name that cannot be written: {}", shown(name));
      }
      keys.emplace_back(key, made.properties.size());
      const bool must = std::find(required.begin(), required.end(), name) != required.end();
      made.properties.push_back({.value = make(value, path + ".properties." + name), .required = must});
      made.least = must ? made.properties.size() : made.least;
    }
    for (std::size_t i = made.properties.size(); i-- > 0;) {
      const bool last = made.properties[i].required || i + 1 == made.properties.size();
      made.properties[i].until = last ? i : made.properties[i + 1].until;
    }
    std::sort(keys.begin(), keys.end());
    for (const auto& [key, property] : keys) {
      made.texts.push_back(key);
      made.property.push_back(property);
    }
    nodes[id] = std::move(made);
  }

  std::size_t count_of(const OrderedJson& schema, const char* key, std::size_t otherwise,
                       const std::string& path) const {
    const auto found = schema.find(key);
    if (found == schema.end()) {
      return otherwise;
    }
    constexpr std::uint64_t most = 1000000;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() > most) {
      refuse(fmt::format("{}.{}", path, key), "is {}: expected a whole number from 0 to {}", shown(*found), most);
    }
    return found->get<std::size_t>();
  }

  void fill_array(Id id, const OrderedJson& schema, const std::string& path) {
    if (!schema.contains("items")) {
      refuse(path, "is an array without 'items': say what it holds");
    }
    Node made;
    made.kind = Kind::array;
    made.least = count_of(schema, "minItems", 0, path);
    made.most = count_of(schema, "maxItems", std::numeric_limits<std::size_t>::max(), path);
    if (made.least > made.most) {
      refuse(path, "has 'minItems' {} and 'maxItems' {}", made.least, made.most);
    }
    made.items = make(schema["items"], path + ".items");
    nodes[id] = std::move(made);
  }

  // A choice among choices is one among all of theirs.
  void flatten() {
    std::vector<std::vector<Id>> all;
    std::vector<std::size_t> seen(nodes.size(), nodes.size());  // by the last node that came here
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      std::vector<Id> met = {static_cast<Id>(i)}, ends;
      seen[i] = i;
      for (std::size_t at = 0; at < met.size(); ++at) {
        const Node& node = nodes[met[at]];
        if (node.kind != Kind::choice) {
          ends.push_back(met[at]);
        }
        for (const Id next : node.of) {
          if (std::exchange(seen[next], i) != i) {
            met.push_back(next);
          }
        }
      }
      if (ends.size() > most_alternatives) {
        refuse(paths_[i], "is one of {} schemas: at most {} are followed (an enum may have more values)", ends.size(),
               most_alternatives);
      }
      all.push_back(std::move(ends));
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      nodes[i].of = std::move(all[i]);
    }
  }

  const OrderedJson& schema_;
  const std::string& where_;
  std::vector<std::string> paths_;   // of the nodes
  std::map<std::string, Id> known_;  // by reference
  std::vector<std::pair<Id, const OrderedJson*>> waiting_;
};

}  // namespace

JsonSchema::JsonSchema(const OrderedJson& schema, const std::string& where) {
  Reader reader(schema, where);
  nodes_ = std::move(reader.nodes);
  root_ = reader.root;
}

}  // namespace orthant
