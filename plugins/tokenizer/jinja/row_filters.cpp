#include <algorithm>
#include <charconv>

#include "plugins/tokenizer/jinja/characters.h"
#include "plugins/tokenizer/jinja/filters.h"
#include "plugins/tokenizer/jinja/functions.h"
#include "plugins/tokenizer/jinja/operations.h"
#include "plugins/tokenizer/jinja/value_text.h"

namespace orthant::jinja {
namespace {

// What "a.b" or 0 names in an item.
Value part_of(Run& run, Value value, const Value& path) {
  if (!path.text()) {
    return item(run, value, path);
  }
  const std::string& names = path.as_text();
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t end = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, end - at);
    std::int64_t number = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
    const bool whole = !name.empty() && read.ec == std::errc() && read.ptr == name.data() + name.size();
    value = item(run, value, whole ? Value(number) : Value(name));
    at = end + 1;
  }
  return value;
}

Value as_list(Run& run, const Value& value, Arguments& arguments) {
  taken("list", arguments, {});
  return made_list(run, items_of(run, value));
}

Value first_item(Run& run, const Value& value, Arguments& arguments) {
  taken("first", arguments, {});
  const std::vector<Value> items = items_of(run, value);
  return items.empty() ? Value(Undefined{"the first item of nothing"}) : items.front();
}

Value last_item(Run& run, const Value& value, Arguments& arguments) {
  taken("last", arguments, {});
  if (value.list() != nullptr && value.list()->row == Row::generator) {
    refuse("the last item of a generator: make a list of it first (the filter 'list')");
  }
  const std::vector<Value> items = items_of(run, value);
  return items.empty() ? Value(Undefined{"the last item of nothing"}) : items.back();
}

Value reverse(Run& run, const Value& value, Arguments& arguments) {
  taken("reverse", arguments, {});
  std::vector<Value> items = items_of(run, value);
  std::reverse(items.begin(), items.end());
  return value.text() ? joined(run, items) : made_list(run, std::move(items), Row::generator);
}

Value join_items(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("join", arguments, {"d", "attribute"});
  const std::string between = given[0].has_value() ? to_text(run, *given[0]) : "";
  std::string made;
  bool begun = false;
  for (const Value& one : items_of(run, value)) {
    const std::string text = to_text(run, given[1].has_value() ? part_of(run, one, *given[1]) : one);
    run.make(between.size() + text.size());
    made += begun ? between : "";
    made += text;
    begun = true;
  }
  return Value(std::move(made));
}

Value pairs(Run& run, const Value& value, Arguments& arguments) {
  taken("items", arguments, {});
  if (value.undefined()) {
    return made_list(run, {}, Row::generator);
  }
  if (value.dict() == nullptr) {
    refuse("items of a {}: expected a dictionary", value.type());
  }
  Arguments none;
  return made_list(run, items_of(run, call(run, *method(run, value, "items"), none)), Row::generator);
}

// Texts are compared without their case, unless somebody asks for it.
Value sort_key(Run& run, const Value& value, bool with_case) {
  if (!value.text() || with_case) {
    return value;
  }
  run.make(value.as_text().size());
  return Value(in_case(value.as_text(), Case::lower));
}

void sort_items(Run& run, std::vector<Value>& items, std::vector<Value> keys, bool falling) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  // An order that contradicts itself (NaN) must not lead a sort beyond its ends.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return falling ? less(run, keys[b], keys[a]) : less(run, keys[a], keys[b]);
  });
  std::vector<Value> made;
  for (const std::size_t i : order) {
    made.push_back(items[i]);
  }
  items = std::move(made);
}

Value sorted(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const auto flag = [&](std::size_t i) { return given[i].has_value() && given[i]->truth(); };
  std::vector<Value> items = items_of(run, value), keys;
  for (const Value& one : items) {
    keys.push_back(
        sort_key(run, given[2].has_value() && !given[2]->none() ? part_of(run, one, *given[2]) : one, flag(1)));
  }
  sort_items(run, items, std::move(keys), flag(0));
  return made_list(run, std::move(items));
}

Value dict_sort(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = given[1].has_value() ? text_of(*given[1], "dictsort's by") : "key";
  if (by != "key" && by != "value") {
    refuse("dictsort by '{}': expected key or value", by);
  }
  if (value.undefined()) {
    refuse("'{}' is undefined", value.name());
  }
  Arguments none;
  const Value rows = pairs(run, value, none);
  std::vector<Value> items = items_of(run, rows), keys;
  for (const Value& one : items) {
    keys.push_back(sort_key(run, one.list()->items[by == "key" ? 0 : 1], given[0].has_value() && given[0]->truth()));
  }
  sort_items(run, items, std::move(keys), given[2].has_value() && given[2]->truth());
  return made_list(run, std::move(items));
}

Value extreme(Run& run, const Value& value, Arguments& arguments, bool greatest) {
  const auto given = taken("min or max", arguments, {"case_sensitive", "attribute"});
  std::optional<Value> best, best_key;
  for (const Value& one : items_of(run, value)) {
    const Value key = sort_key(run, given[1].has_value() ? part_of(run, one, *given[1]) : one,
                               given[0].has_value() && given[0]->truth());
    if (!best.has_value() || (greatest ? less(run, *best_key, key) : less(run, key, *best_key))) {
      best = one;
      best_key = key;
    }
  }
  return best.value_or(Value(Undefined{"the least or greatest of nothing"}));
}

Value least(Run& run, const Value& value, Arguments& arguments) {
  return extreme(run, value, arguments, false);
}

Value greatest(Run& run, const Value& value, Arguments& arguments) {
  return extreme(run, value, arguments, true);
}

Value sum_of(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("sum", arguments, {"attribute", "start"});
  Value made = given[1].value_or(Value(std::int64_t{0}));
  for (const Value& one : items_of(run, value)) {
    made = arithmetic(run, Operator::add, made,
                      given[0].has_value() && !given[0]->none() ? part_of(run, one, *given[0]) : one);
  }
  return made;
}

Value unique(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Value> kept;
  Dict met;
  for (const Value& one : items_of(run, value)) {
    const Value key = sort_key(run, given[1].has_value() ? part_of(run, one, *given[1]) : one,
                               given[0].has_value() && given[0]->truth());
    if (met.find(key) == nullptr) {
      met.set(key, Value());
      kept.push_back(one);
    }
  }
  return made_list(run, std::move(kept), Row::generator);
}

// The rest of the arguments behind the first `count`.
Arguments behind(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

Value mapped(Run& run, const Value& value, Arguments& arguments) {
  std::vector<Value> made;
  if (arguments.positional.empty()) {
    const auto given = taken("map", arguments, {"attribute", "default"});
    if (!given[0].has_value()) {
      refuse("map takes the name of a filter, or attribute=");
    }
    for (const Value& one : items_of(run, value)) {
      Value part = part_of(run, one, *given[0]);
      made.push_back(part.undefined() && given[1].has_value() ? *given[1] : std::move(part));
    }
    return made_list(run, std::move(made), Row::generator);
  }
  const std::string& name = text_of(arguments.positional[0], "map's filter");
  const Filter filter = filter_named(name);
  if (filter == nullptr) {
    refuse("the filter '{}' is not known here", name);
  }
  for (const Value& one : items_of(run, value)) {
    run.spend();
    Arguments rest = behind(arguments, 1);
    made.push_back(filter(run, one, rest));
  }
  return made_list(run, std::move(made), Row::generator);
}

// Of select, reject, selectattr and rejectattr.
template <bool wanted, bool by_part>
Value chosen(Run& run, const Value& value, Arguments& arguments) {
  constexpr std::size_t fixed = by_part ? 1 : 0;
  if (arguments.positional.size() < fixed) {
    refuse("selectattr and rejectattr take the name of an attribute");
  }
  const bool named = arguments.positional.size() > fixed;
  const std::string name = named ? text_of(arguments.positional[fixed], "the name of a test") : "";
  const Test test = named ? test_named(name) : nullptr;
  if (named && test == nullptr) {
    refuse("the test '{}' is not known here", name);
  }
  std::vector<Value> made;
  for (const Value& one : items_of(run, value)) {
    run.spend();
    const Value looked_at = by_part ? part_of(run, one, arguments.positional[0]) : one;
    Arguments rest = behind(arguments, named ? fixed + 1 : fixed);
    if ((test != nullptr ? test(run, looked_at, rest) : looked_at.truth()) == wanted) {
      made.push_back(one);
    }
  }
  return made_list(run, std::move(made), Row::generator);
}

}  // namespace

Filter row_filter_named(const std::string& name) {
  constexpr std::pair<const char*, Filter> filters[] = {{"dictsort", dict_sort},
                                                        {"first", first_item},
                                                        {"items", pairs},
                                                        {"join", join_items},
                                                        {"last", last_item},
                                                        {"list", as_list},
                                                        {"map", mapped},
                                                        {"max", greatest},
                                                        {"min", least},
                                                        {"reject", chosen<false, false>},
                                                        {"rejectattr", chosen<false, true>},
                                                        {"reverse", reverse},
                                                        {"select", chosen<true, false>},
                                                        {"selectattr", chosen<true, true>},
                                                        {"sort", sorted},
                                                        {"sum", sum_of},
                                                        {"unique", unique}};
  for (const auto& [known, filter] : filters) {
    if (name == known) {
      return filter;
    }
  }
  return nullptr;
}

}  // namespace orthant::jinja
