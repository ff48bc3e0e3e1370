// JsonSchema: what a JSON object is to look like, by the part of JSON Schema (draft 2020-12) that OpenAI's structured
// outputs have, as a graph of nodes.
//
//   object   properties, required, additionalProperties: false, which it is without a word too
//   array    items, minItems, maxItems
//   string, integer, number, boolean, null, lists of types
//   enum and const of scalars; anyOf; $ref to "#" and into the schema itself, also in circles
//   title, description and other annotations, which change nothing
//
// All else is refused by name: an answer never breaks what was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace orthant {

// Thread safety: constant.
class JsonSchema {
 public:
  // where: what the schema is called, for messages. Errors: ConfigError naming the place in it, what stands there, and
  // what is followed.
  JsonSchema(const nlohmann::ordered_json& schema, const std::string& where);

  using Id = std::uint16_t;
  enum class Kind : std::uint8_t { object, array, string, number, integer, text, choice };
  struct Property {
    Id value = 0;
    bool required = false;
    // The last one that may follow next where this and all after it are still to come.
    std::size_t until = 0;
  };
  struct Node {
    Kind kind = Kind::choice;
    // Of Kind::text the texts that it may be; of an object its keys. As JSON, sorted.
    std::vector<std::string> texts;
    std::vector<std::size_t> property;  // of an object: which one has a key
    std::vector<Property> properties;   // in the schema's order, which is that of the answer
    Id items = 0;
    std::size_t least = 0, most = 0;  // items; of an object: at least the first so many properties must have passed
    std::vector<Id> of;               // the nodes that a value of this one may be: no choices
    int levels = 0;                   // of objects and arrays that the least such value has
  };

  const Node& node(Id id) const { return nodes_[id]; }
  Id root() const { return root_; }

 private:
  std::vector<Node> nodes_;
  Id root_ = 0;
};

}  // namespace orthant
