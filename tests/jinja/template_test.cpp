// Against the real Jinja in the environment of transformers: tables that make_table.py wrote.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plugins/tokenizer/jinja/json_value.h"
#include "plugins/tokenizer/jinja/template.h"
#include "tests/support/paths.h"

namespace orthant::jinja {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string text_in(const std::string& name) {
  std::ifstream file(paths::source("tests/jinja/" + name));
  EXPECT_TRUE(file.is_open()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<OrderedJson> lines_in(const std::string& name) {
  std::vector<OrderedJson> lines;
  std::stringstream text(text_in(name));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(OrderedJson::parse(line));
  }
  return lines;
}

Dict dict_of(const OrderedJson& variables) {
  Dict dict;
  for (const auto& [name, value] : variables.items()) {
    dict.set(Value(name), value_of(value));
  }
  return dict;
}

// As the tables have it: {"text", "generated"} or {"error"}.
OrderedJson outcome(const std::string& source, const OrderedJson& variables) {
  try {
    const RenderedTemplate made = Template(source).render(dict_of(variables));
    OrderedJson json = {{"text", made.text}};
    for (const auto& [begin, end] : made.generated) {
      json["generated"].push_back(made.text.substr(begin, end - begin));
    }
    return json;
  } catch (const TemplateError& error) {
    EXPECT_GT(error.line(), 0) << source << ": " << error.what();
    return {{"error", error.raised() ? "raised: " + std::string(error.what()) : "refused"}};
  }
}

void compare(const OrderedJson& expected, const OrderedJson& made, const std::string& what) {
  if (!expected.contains("error")) {
    EXPECT_EQ(made.value("text", made.dump()), expected["text"].get<std::string>()) << what;
    EXPECT_EQ(made.value("generated", OrderedJson::array()), expected.value("generated", OrderedJson::array())) << what;
    return;
  }
  const std::string error = expected["error"];
  EXPECT_EQ(made.value("error", made.dump()), error.starts_with("raised") ? error : "refused") << what;
}

OrderedJson variables_of(OrderedJson conversation) {
  for (const char* name : {"tools", "documents"}) {
    if (!conversation.contains(name)) {
      conversation[name] = nullptr;
    }
  }
  return conversation;
}

std::string error_of(const std::string& source, const Limits& limits = {}) {
  try {
    Template(source).render({}, limits);
    return "none";
  } catch (const TemplateError& error) {
    return fmt::format("line {}: {}", error.line(), error.what());
  }
}

TEST(Jinja, ConversationsAreThoseOfTransformers) {
  const OrderedJson conversations = OrderedJson::parse(text_in("conversations.json"));
  std::size_t compared = 0;
  for (const OrderedJson& expected : lines_in("expected.jsonl")) {
    const std::string name = expected["template"], conversation = expected["conversation"];
    compare(expected, outcome(text_in("templates/" + name + ".jinja"), variables_of(conversations[conversation])),
            name + ", " + conversation);
    ++compared;
  }
  EXPECT_EQ(compared, 160);
}

TEST(Jinja, ExpressionsAndStatementsAreThoseOfJinja) {
  const std::vector<OrderedJson> lines = lines_in("expressions.jsonl");
  OrderedJson variables = variables_of(lines[0]["variables"]);
  variables["messages"] = OrderedJson::array();
  variables["add_generation_prompt"] = false;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    compare(lines[i], outcome(lines[i]["template"], variables), lines[i]["template"]);
  }
  EXPECT_GT(lines.size(), 600);
}

TEST(Jinja, WhatIsNotKnownIsRefusedWhereItStandsWhenItIsRead) {
  const auto refused = [](const std::string& source) {
    try {
      const Template made(source);
      return std::string("none");
    } catch (const TemplateError& error) {
      return fmt::format("line {}: {}", error.line(), error.what());
    }
  };
  EXPECT_EQ(refused("a\n{% if false %}\n{{ x | nosuch }}{% endif %}"), "line 3: the filter 'nosuch' is not known here");
  EXPECT_EQ(refused("{{ x is nosuch }}"), "line 1: the test 'nosuch' is not known here");
  EXPECT_EQ(refused("\n{{ x.nosuch(1) }}"), "line 2: the method 'nosuch' is not known here");
  EXPECT_EQ(refused("{% call m() %}{% endcall %}"), "line 1: the statement 'call' is not known here");
  EXPECT_EQ(refused("{% include 'x' %}"), "line 1: the statement 'include' is not known here");
  EXPECT_EQ(refused("{% for x in y recursive %}{% endfor %}"), "line 1: 'recursive' loops are not known here");
  EXPECT_EQ(refused("{% macro m() %}\n{{ varargs }}{% endmacro %}"), "line 2: 'varargs' is not known here");
}

TEST(Jinja, AStrangersTemplateEnds) {
  const Limits small{.steps = 100'000, .bytes = 1 << 20};
  const auto ends = [&](const std::string& source, const std::string& why) {
    EXPECT_NE(error_of(source, small).find(why), std::string::npos) << source << ": " << error_of(source, small);
  };
  const std::string numbers = "{% for i in range(99999) %}";
  ends(numbers + numbers + "x{% endfor %}{% endfor %}", "it may never end");
  ends("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "does a macro call itself for ever?");
  ends("{{ 'aaaaaaaaaa' * 1000000000 }}", "it may never end");
  ends("{{ ['aaaaaaaaaa'] * 1000000000 }}", "it may never end");
  ends("{{ 'a' * 9000000000000000000 }}", "copies of a str");
  ends("{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
       "it may never end");
  ends("{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
       "deep");
  ends("{{ 'a' | indent(1000000) }}{{ range(10000000) }}", "range of more than");
  ends("{{ 2 ** 64 }}", "beyond 64 bits");
  ends("{{ 9223372036854775807 + 1 }}", "beyond 64 bits");
  ends("{{ -9223372036854775807 - 2 }}", "beyond 64 bits");
  ends("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}", "deep in each other");
  ends("{{ " + std::string(5000, '[') + std::string(5000, ']') + " }}", "deep in each other");
  std::string ifs;
  for (int i = 0; i < 3000; ++i) {
    ifs += "{% if 1 %}";
  }
  ends(ifs, "deep in each other");
  ends("{{ 1" + std::string(5000, '+') + "1 }}", "deep in each other");
  ends(std::string(2 << 20, 'a'), "expected at most");
  ends("\xff", "no UTF-8");
  // A function that its own variables hold goes with the run.
  EXPECT_EQ(Template("{% set f = range %}{% macro m() %}{{ f }}{% endmacro %}{% set g = m %}").render({}).text, "");
}

}  // namespace
}  // namespace orthant::jinja
