// Methods of lists and dictionaries, and which method a value has. Those of texts: text_methods.cpp.
#include "plugins/tokenizer/jinja/text_methods.h"

#include <algorithm>
#include <span>

#include "plugins/tokenizer/jinja/functions.h"
#include "plugins/tokenizer/jinja/operations.h"

namespace orthant::jinja {
namespace {

using Method = Value (*)(Run& run, const Value& of, Arguments& arguments);
using Named = std::pair<const char*, Method>;

Value dict_items(Run& run, const Value& of, Arguments& arguments) {
  taken("items", arguments, {});
  std::vector<Value> made;
  for (const auto& [key, value] : of.dict()->items()) {
    run.make(2 * sizeof(Value));
    made.emplace_back(List{.items = {key, value}, .row = Row::tuple});
  }
  return made_list(run, std::move(made), Row::view);
}

Value dict_keys(Run& run, const Value& of, Arguments& arguments) {
  taken("keys", arguments, {});
  return made_list(run, items_of(run, of), Row::view);
}

Value dict_values(Run& run, const Value& of, Arguments& arguments) {
  taken("values", arguments, {});
  std::vector<Value> made;
  for (const Dict::Item& item : of.dict()->items()) {
    made.push_back(item.second);
  }
  return made_list(run, std::move(made), Row::view);
}

Value dict_get(Run&, const Value& of, Arguments& arguments) {
  const auto given = taken("get", arguments, {"key", "default"});
  const Value* found = given[0].has_value() ? of.dict()->find(*given[0]) : nullptr;
  return found != nullptr ? *found : given[1].value_or(Value());
}

Value copied(Run&, const Value& of, Arguments& arguments) {
  taken("copy", arguments, {});
  return of;
}

Value list_count(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("count", arguments, {"value"});
  const auto& items = of.list()->items;
  return Value(static_cast<std::int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& one) {
    return given[0].has_value() && equal(run, one, *given[0]);
  })));
}

Value list_index(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("index", arguments, {"value"});
  const auto& items = of.list()->items;
  for (std::size_t i = 0; i < items.size() && given[0].has_value(); ++i) {
    if (equal(run, items[i], *given[0])) {
      return Value(static_cast<std::int64_t>(i));
    }
  }
  refuse("index: the value is not in the list");
}

Value changes(Run&, const Value& of, Arguments&) {
  refuse("a method that changes a {} is forbidden in templates: it is none of Jinja's sandbox", of.type());
}

constexpr Named dict_methods[] = {
    {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get},       {"copy", copied},
    {"clear", changes},    {"pop", changes},    {"popitem", changes},    {"setdefault", changes}, {"update", changes}};
constexpr Named tuple_methods[] = {{"count", list_count}, {"index", list_index}};
constexpr Named list_methods[] = {{"count", list_count}, {"index", list_index}, {"append", changes},
                                  {"clear", changes},    {"extend", changes},   {"insert", changes},
                                  {"pop", changes},      {"remove", changes},   {"reverse", changes},
                                  {"sort", changes},     {"copy", copied}};

Method found_in(std::span<const Named> methods, const std::string& name) {
  for (const auto& [known, method] : methods) {
    if (name == known) {
      return method;
    }
  }
  return nullptr;
}

}  // namespace

bool method_known(const std::string& name) {
  return found_in(dict_methods, name) != nullptr || found_in(list_methods, name) != nullptr ||
         text_method(name) != nullptr || name == "cycle" || name == "changed";
}

std::optional<Value> method(Run&, const Value& value, const std::string& name) {
  Method found = nullptr;
  if (value.dict() != nullptr) {
    found = found_in(dict_methods, name);
  } else if (value.list() != nullptr && value.list()->row == Row::tuple) {
    found = found_in(tuple_methods, name);
  } else if (value.list() != nullptr && value.list()->row == Row::list) {
    found = found_in(list_methods, name);
  } else if (value.text()) {
    found = text_method(name);
  }
  if (found == nullptr) {
    return std::nullopt;
  }
  return Value(
      Callable{.name = name, .depth = value.depth() + 1, .call = [value, found](Run& run, Arguments& arguments) {
                 return found(run, value, arguments);
               }});
}

}  // namespace orthant::jinja
