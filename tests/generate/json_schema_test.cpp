// Answers that follow a schema, against a validator and a writer of their own.
#include "apps/lm/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <orthant/error.h>
#include <orthant/random.h>

#include "apps/lm/json_answer.h"
#include "core/base/ordered_json.h"
#include "tests/support/error_of.h"

namespace orthant::json_schema_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// ---- what JSON Schema says, by definition

const OrderedJson& target_of(const OrderedJson& root, const std::string& ref) {
  return root.at(OrderedJson::json_pointer(ref.substr(1)));
}

bool is_of(const OrderedJson& value, const std::string& type) {
  return type == "object"    ? value.is_object()
         : type == "array"   ? value.is_array()
         : type == "string"  ? value.is_string()
         : type == "boolean" ? value.is_boolean()
         : type == "null"    ? value.is_null()
         : type == "integer" ? value.is_number_integer()
                             : value.is_number();
}

bool valid(const OrderedJson& root, const OrderedJson& schema, const OrderedJson& value) {
  const auto all = [](const auto& list, const auto& holds) { return std::all_of(list.begin(), list.end(), holds); };
  const auto any = [](const auto& list, const auto& holds) { return std::any_of(list.begin(), list.end(), holds); };
  if (schema.contains("$ref")) {
    return valid(root, target_of(root, schema["$ref"]), value);
  }
  if (schema.contains("anyOf")) {
    return any(schema["anyOf"], [&](const auto& one) { return valid(root, one, value); });
  }
  if (schema.contains("type")) {
    const OrderedJson types = schema["type"].is_array() ? schema["type"] : OrderedJson::array({schema["type"]});
    if (!any(types, [&](const auto& type) { return is_of(value, type); })) {
      return false;
    }
  }
  if (schema.contains("const") && value != schema["const"]) {
    return false;
  }
  if (schema.contains("enum") && !any(schema["enum"], [&](const auto& one) { return one == value; })) {
    return false;
  }
  if (value.is_object()) {
    const OrderedJson properties = schema.value("properties", OrderedJson::object());
    for (const auto& [name, member] : value.items()) {
      if (!properties.contains(name) || !valid(root, properties[name], member)) {
        return false;
      }
    }
    return all(schema.value("required", OrderedJson::array()),
               [&](const auto& name) { return value.contains(name.template get<std::string>()); });
  }
  if (value.is_array()) {
    return value.size() >= schema.value("minItems", std::size_t{0}) &&
           value.size() <= schema.value("maxItems", std::size_t{1} << 40) &&
           all(value, [&](const auto& item) { return valid(root, schema["items"], item); });
  }
  return true;
}

// ---- drawing

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(orthant::below({seed_}, at_++, count)); }
  template <class List>
  auto of(const List& list) {
    return list[below(list.size())];
  }

 private:
  std::uint64_t seed_, at_ = 0;
};

OrderedJson drawn_schema(Draw& draw, int depth) {
  const std::vector<std::string> scalars = {"string", "number", "integer", "boolean", "null"};
  switch (draw.below(depth > 0 ? 9 : 4)) {
    case 0: return {{"type", draw.of(scalars)}, {"description", "a scalar"}};
    case 1: return {{"enum", {"a", "ab", "abc", "\"q\n", "\u00e9t\u00e9", 1, 12, 12.5, -3, true, nullptr}}};
    case 2: return {{"type", {"string", "null"}}, {"title", "T"}};
    case 3: return {{"const", draw.below(2) == 0 ? OrderedJson("only") : OrderedJson(100)}};
    case 4: {
      OrderedJson list = OrderedJson::array();
      for (std::size_t i = 0; i < 1 + draw.below(3); ++i) {
        list.push_back(drawn_schema(draw, depth - 1));
      }
      return {{"anyOf", list}};
    }
    case 5: {
      OrderedJson array = {{"type", "array"}, {"items", drawn_schema(draw, depth - 1)}};
      const std::size_t least = draw.below(3);
      if (draw.below(2) == 0) {
        array["minItems"] = least;
      }
      if (draw.below(2) == 0) {
        array["maxItems"] = least + draw.below(3);
      }
      return array;
    }
    case 6: return {{"$ref", draw.below(2) == 0 ? "#/$defs/leaf" : "#/$defs/tree"}};
    default: {
      OrderedJson properties = OrderedJson::object(), required = OrderedJson::array();
      for (const char* name : {"a", "ab", "b", "\u00fc \"x\"", ""}) {
        if (draw.below(3) > 0) {
          properties[name] = drawn_schema(draw, depth - 1);
          if (draw.below(2) == 0) {
            required.push_back(name);
          }
        }
      }
      return {{"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}};
    }
  }
}

OrderedJson drawn_root(Draw& draw) {
  OrderedJson root = OrderedJson::object();
  while (root.value("type", OrderedJson()) != "object") {
    root = drawn_schema(draw, 3);
  }
  root["$defs"] = {
      {"leaf", {{"type", "integer"}}},
      {"tree",
       {{"type", "object"},
        {"properties",
         {{"v", {{"$ref", "#/$defs/leaf"}}}, {"next", {{"anyOf", {{{"$ref", "#/$defs/tree"}}, {{"type", "null"}}}}}}}},
        {"required", {"v", "next"}},
        {"additionalProperties", false}}}};
  return root;
}

// A value of it; properties in the schema's order.
OrderedJson drawn_value(const OrderedJson& root, const OrderedJson& schema, Draw& draw, int depth) {
  if (schema.contains("$ref")) {
    return drawn_value(root, target_of(root, schema["$ref"]), draw, depth);
  }
  if (schema.contains("anyOf")) {
    const OrderedJson& list = schema["anyOf"];
    return drawn_value(root, depth > 4 ? list.back() : list[draw.below(list.size())], draw, depth + 1);
  }
  if (schema.contains("const")) {
    return schema["const"];
  }
  if (schema.contains("enum")) {
    return draw.of(schema["enum"]);
  }
  const std::string type = schema["type"].is_array() ? draw.of(schema["type"]) : schema["type"];
  if (type == "object") {
    OrderedJson value = OrderedJson::object();
    for (const auto& [name, property] : schema["properties"].items()) {
      const OrderedJson& required = schema["required"];
      if (std::find(required.begin(), required.end(), name) != required.end() || draw.below(2) == 0) {
        value[name] = drawn_value(root, property, draw, depth + 1);
      }
    }
    return value;
  }
  if (type == "array") {
    const std::size_t least = schema.value("minItems", std::size_t{0});
    const std::size_t most = std::min(least + 2, schema.value("maxItems", least + 2));
    OrderedJson value = OrderedJson::array();
    for (std::size_t count = least + draw.below(most - least + 1); value.size() < count;) {
      value.push_back(drawn_value(root, schema["items"], draw, depth + 1));
    }
    return value;
  }
  return type == "string"    ? OrderedJson(draw.of(std::vector<std::string>{"", "x", "\\ \" \t", "\u4e16"}))
         : type == "number"  ? OrderedJson(draw.of(std::vector<double>{0, -1.5, 2e10, 3}))
         : type == "integer" ? OrderedJson(draw.of(std::vector<int>{0, -1, 42}))
         : type == "boolean" ? OrderedJson(draw.below(2) == 0)
                             : OrderedJson();
}

bool accepts(const JsonSchema& schema, const std::string& text) {
  JsonAnswer answer(&schema);
  return answer.add(text) && answer.whole();
}

constexpr int schemas = 150;

// ---- no text that is let through breaks the schema, and none ends in nothing

TEST(JsonSchema, IsFollowedByWhateverIsDrawn) {
  int whole = 0;
  for (int seed = 0; seed < schemas; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed));
    const OrderedJson root = drawn_root(draw);
    const JsonSchema schema(root, "s");
    for (int run = 0; run < 4; ++run) {
      JsonAnswer answer(&schema);
      std::string said;
      while (!answer.whole() && said.size() < 400) {
        std::string bytes;
        std::vector<JsonAnswer> next;
        for (int c = 0; c < 256; ++c) {
          JsonAnswer tried = answer;
          if (tried.add(static_cast<char>(c))) {
            next.push_back(tried);
            bytes += static_cast<char>(c);
          }
        }
        ASSERT_FALSE(next.empty()) << said << "\n" << root;
        // Ends are preferred: texts of any letters would never come to one.
        std::size_t taken = draw.below(next.size());
        for (const char end : {'}', ']', '"', ','}) {
          if (const std::size_t at = bytes.find(end); at != bytes.npos && draw.below(3) == 0) {
            taken = at;
          }
        }
        answer = next[taken];
        said += bytes[taken];
      }
      if (answer.whole()) {
        const OrderedJson value = OrderedJson::parse(said, nullptr, false);
        EXPECT_TRUE(valid(root, root, value)) << said << "\n" << root;
        ++whole;
      }
    }
  }
  EXPECT_GT(whole, schemas * 3);
}

// ---- and what follows the schema, in its order, is let through

TEST(JsonSchema, LetsThroughWhatFollowsIt) {
  int good = 0, bad = 0;
  for (int seed = 0; seed < schemas; ++seed) {
    Draw draw(static_cast<std::uint64_t>(1000 + seed));
    const OrderedJson root = drawn_root(draw);
    const JsonSchema schema(root, "s");
    for (int run = 0; run < 10; ++run) {
      const OrderedJson value = drawn_value(root, root, draw, 0);
      ASSERT_TRUE(valid(root, root, value)) << value << "\n" << root;
      for (const int indent : {-1, 2}) {
        EXPECT_TRUE(accepts(schema, value.dump(indent))) << value.dump(indent) << "\n" << root;
      }
      // Something else in its place: let through only where it follows the schema too.
      std::string text = value.dump();
      const std::string letters = "{}[]\":,0123-.eatrufls \\";
      for (std::size_t changes = 1 + draw.below(2); changes > 0 && text.size() > 2; --changes) {
        const std::size_t at = 1 + draw.below(text.size() - 2);
        switch (draw.below(3)) {
          case 0: text[at] = draw.of(letters); break;
          case 1: text.insert(at, 1, draw.of(letters)); break;
          default: text.erase(at, 1);
        }
      }
      if (accepts(schema, text)) {
        EXPECT_TRUE(valid(root, root, OrderedJson::parse(text, nullptr, false))) << text << "\n" << root;
        ++good;
      } else {
        ++bad;
      }
    }
  }
  EXPECT_GT(good, 50);
  EXPECT_GT(bad, 500);
}

TEST(JsonSchema, ComesInItsOrderAndOnce) {
  const JsonSchema schema(OrderedJson::parse(R"({"type": "object", "properties": {"a": {"type": "integer"},
    "b": {"type": "string"}, "c": {"type": "null"}}, "required": ["b"]})"),
                          "s");
  EXPECT_TRUE(accepts(schema, R"({"a": 1, "b": "x", "c": null})"));
  EXPECT_TRUE(accepts(schema, R"({"b": "x"})"));
  EXPECT_FALSE(accepts(schema, R"({"a": 1})"));
  EXPECT_FALSE(accepts(schema, R"({"a": 1, "c": null})"));
  EXPECT_FALSE(accepts(schema, R"({"b": "x", "a": 1})"));
  EXPECT_FALSE(accepts(schema, R"({"b": "x", "b": "y"})"));
  EXPECT_FALSE(accepts(schema, R"({"b": "x", "d": 1})"));
  EXPECT_FALSE(accepts(schema, R"({"a": 1.0, "b": "x"})"));
  JsonAnswer answer(&schema);
  EXPECT_FALSE(answer.add(R"({"b": "x", "c": null,)")) << "nothing can follow the comma";
}

TEST(JsonSchema, EndsBeforeItIsTooDeep) {
  const JsonSchema schema(OrderedJson::parse(R"({"type": "object", "properties": {"next": {"$ref": "#"},
    "list": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}})"),
                          "s");
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "{\"next\":";
  }
  EXPECT_FALSE(JsonAnswer(&schema).add(text));
  text.clear();
  for (int i = 0; i < 59; ++i) {
    text += "{\"next\":";
  }
  EXPECT_TRUE(accepts(schema, text + "{}" + std::string(59, '}')));
  EXPECT_FALSE(JsonAnswer(&schema).add(text + "{\"l"));
}

TEST(JsonSchema, RefusesWhatItDoesNotFollow) {
  const auto refused = [](const std::string& text) {
    return test::error_of<ConfigError>([&] { const JsonSchema read(OrderedJson::parse(text), "s"); });
  };
  const auto inside = [&](const std::string& text) {
    return refused(R"({"type": "object", "properties": {"a": )" + text + "}}");
  };
  EXPECT_THAT(refused("true"), HasSubstr("'s' is true: expected a schema"));
  EXPECT_THAT(refused("{}"), AllOf(HasSubstr("'s' says nothing"), HasSubstr("anyOf")));
  EXPECT_THAT(refused(R"({"type": "array", "items": {"type": "null"}})"), HasSubstr("'s' is no object"));
  EXPECT_THAT(refused(R"({"type": "object"})"), HasSubstr("without 'properties'"));
  EXPECT_THAT(inside(R"({"type": "string", "pattern": "a+"})"),
              AllOf(HasSubstr("'s.properties.a' has 'pattern'"), HasSubstr("not followed")));
  EXPECT_THAT(inside(R"({"type": "integer", "minimum": 1})"), HasSubstr("'s.properties.a' has 'minimum'"));
  EXPECT_THAT(inside(R"({"type": "string", "format": "date"})"), HasSubstr("'format'"));
  EXPECT_THAT(inside(R"({"oneOf": []})"), HasSubstr("'oneOf'"));
  EXPECT_THAT(inside(R"({"allOf": [{"type": "null"}]})"), HasSubstr("'allOf'"));
  EXPECT_THAT(inside(R"({"anyOf": []})"), HasSubstr("'s.properties.a.anyOf' is []"));
  EXPECT_THAT(inside(R"({"anyOf": [{"type": "text"}]})"), HasSubstr("'s.properties.a.anyOf[0].type' is \"text\""));
  EXPECT_THAT(inside(R"({"type": "array"})"), HasSubstr("without 'items'"));
  EXPECT_THAT(inside(R"({"type": "array", "items": [{"type": "null"}]})"), HasSubstr("'s.properties.a.items' is ["));
  EXPECT_THAT(inside(R"({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 2})"),
              HasSubstr("'minItems' 3"));
  EXPECT_THAT(inside(R"({"type": "array", "items": {"type": "null"}, "minItems": -3})"), HasSubstr("minItems' is -3"));
  EXPECT_THAT(inside(R"({"type": "array", "items": {"type": "null"}, "uniqueItems": true})"),
              HasSubstr("'uniqueItems'"));
  EXPECT_THAT(inside(R"({"type": "object", "properties": {}, "additionalProperties": true})"),
              HasSubstr("'s.properties.a.additionalProperties' is true"));
  EXPECT_THAT(inside(R"({"type": "object", "properties": {}, "required": ["b"]})"), HasSubstr("holds \"b\""));
  EXPECT_THAT(inside(R"({"type": "object", "properties": {}, "patternProperties": {}})"),
              HasSubstr("'patternProperties'"));
  EXPECT_THAT(inside(R"({"enum": []})"), HasSubstr("leaves no value"));
  EXPECT_THAT(inside(R"({"enum": [1], "type": "string"})"), HasSubstr("leaves no value of 'type'"));
  EXPECT_THAT(inside(R"({"enum": [[1]]})"), HasSubstr("holds [1]"));
  EXPECT_THAT(inside(R"({"const": 12345678901234567890})"), HasSubstr("18 digits"));
  EXPECT_THAT(inside(R"({"const": 100000000000000000001})"), HasSubstr("18 digits"));
  EXPECT_THAT(inside(R"({"enum": [1, -9223372036854775809]})"), HasSubstr("18 digits"));
  EXPECT_THAT(inside(R"({"$ref": "#/$defs/none"})"), HasSubstr("'s.properties.a.$ref' is \"#/$defs/none\""));
  EXPECT_THAT(inside(R"({"$ref": "http://a/b"})"), HasSubstr("http://a/b"));
  EXPECT_THAT(inside(R"({"$ref": "#/x~"})"), HasSubstr("#/x~"));
  EXPECT_THAT(inside(R"({"$ref": "#", "minItems": 1})"), HasSubstr("'minItems'"));
  EXPECT_THAT(refused(R"({"$ref": "#"})"), HasSubstr("without an end"));
  EXPECT_THAT(refused(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
              HasSubstr("without an end"));
  EXPECT_THAT(refused(R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"b": {"not": {}}}}}})"),
              HasSubstr("'s #/$defs/a.properties.b' has 'not'"));
  OrderedJson many = {{"anyOf", OrderedJson::array()}};
  for (int i = 0; i < 65; ++i) {
    many["anyOf"].push_back({{"const", i}});
  }
  EXPECT_THAT(inside(many.dump()), HasSubstr("65 schemas"));
}

TEST(JsonSchemas, FollowOneOfAlternativesThatAllowTheSame) {
  const auto alternatives = [](const std::string& several) {
    const JsonSchema schema(OrderedJson::parse(R"({"type": "object", "properties": {"v": {"anyOf": [)" + several +
                                               R"(]}}, "$defs": {"list": {"anyOf": [{"type": "null"}, {"type": "object",
        "properties": {"next": {"$ref": "#/$defs/list"}}, "required": ["next"]}]}}})"),
                            "s");
    return schema.node(schema.node(schema.root()).properties[0].value).of.size();
  };
  EXPECT_EQ(alternatives(R"({"type": "string"}, {"type": "string", "title": "t"}, {"type": "integer"})"), 2u);
  EXPECT_EQ(alternatives(R"({"enum": [1, "a"]}, {"enum": ["a", 1]}, {"enum": [1]})"), 2u);
  const std::string object = R"({"type": "object", "properties": {"a": {"type": "string"}}})",
                    needed = R"({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})",
                    number = R"({"type": "object", "properties": {"a": {"type": "number"}}})";
  EXPECT_EQ(alternatives(object + "," + needed + "," + number + "," + object), 3u);
  EXPECT_EQ(alternatives(R"({"type": "array", "items": )" + object + R"(}, {"type": "array", "items": )" + object +
                         R"(}, {"type": "array", "items": )" + number + R"(}, {"type": "array", "items": )" + object +
                         R"(, "maxItems": 2})"),
            3u);
  // Circles of the same form.
  EXPECT_EQ(alternatives(R"({"$ref": "#/$defs/list"}, {"type": "object", "properties": {"next": {"anyOf": [
      {"$ref": "#/$defs/list"}, {"type": "null"}]}}, "required": ["next"]})"),
            2u);
}

}  // namespace
}  // namespace orthant::json_schema_test
