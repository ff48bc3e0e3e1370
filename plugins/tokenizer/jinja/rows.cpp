// Items of values, by name, number, slice and all at once.
#include <algorithm>

#include "core/base/utf8.h"
#include "plugins/tokenizer/jinja/characters.h"
#include "plugins/tokenizer/jinja/operations.h"

namespace orthant::jinja {
namespace {

bool indexed(const List& list) {
  return list.row != Row::view && list.row != Row::generator;
}

}  // namespace

Value item(Run& run, const Value& value, const Value& key) {
  if (value.undefined()) {
    refuse_undefined(value);
  }
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(key)) {
      return *found;
    }
  } else if ((key.integer() || key.boolean()) &&
             ((value.list() != nullptr && indexed(*value.list())) || value.text())) {
    const std::int64_t count = length_of(value), asked = key.as_integer(), at = asked < 0 ? asked + count : asked;
    if (at < 0 || at >= count) {
      return Undefined{fmt::format("{} object has no element {}", value.type(), asked)};
    }
    if (value.list() != nullptr) {
      return value.list()->items[static_cast<std::size_t>(at)];
    }
    run.spend(count / 16);
    const std::string& text = value.as_text();
    const std::size_t begin = byte_of(text, at);
    return Value(text.substr(begin, utf8_length(std::string_view(text).substr(begin))));
  }
  if (key.text()) {
    if (const Namespace* space = value.space()) {
      const auto found = space->fields.find(key.as_text());
      return found == space->fields.end() ? Value(Undefined{key.as_text()}) : found->second;
    }
    if (std::optional<Value> found = method(run, value, key.as_text())) {
      return *found;
    }
  }
  return Undefined{key.text() ? fmt::format("{} object has no attribute '{}'", value.type(), key.as_text())
                              : fmt::format("{} object has no such element", value.type())};
}

Value attribute(Run& run, const Value& value, const std::string& name) {
  if (value.undefined()) {
    refuse_undefined(value);
  }
  if (std::optional<Value> found = method(run, value, name)) {
    return *found;
  }
  if (const Dict* dict = value.dict()) {
    const Value* found = dict->find(std::string_view(name));
    return found != nullptr ? *found : Value(Undefined{fmt::format("dict object has no attribute '{}'", name)});
  }
  return item(run, value, Value(name));
}

Value slice(Run& run, const Value& value, const Slice& cut) {
  if (value.undefined()) {
    refuse_undefined(value);
  }
  if (!value.text() && (value.list() == nullptr || !indexed(*value.list()))) {
    refuse("a slice of a {}: expected a list or a text", value.type());
  }
  const std::int64_t count = length_of(value), step = cut.step.value_or(1);
  if (step == 0) {
    refuse("a slice with a step of 0");
  }
  const std::int64_t low = step < 0 ? -1 : 0, high = step < 0 ? count - 1 : count;
  const auto bound = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
    return at.has_value() ? std::clamp(*at < 0 ? *at + count : *at, low, high) : otherwise;
  };
  const std::int64_t begin = bound(cut.begin, step < 0 ? high : low), end = bound(cut.end, step < 0 ? low : high);
  if (value.text() && step == 1) {
    run.spend(count / 16);
    const std::size_t from = byte_of(value.as_text(), begin);
    const std::string_view rest = std::string_view(value.as_text()).substr(from);
    const std::string_view made = rest.substr(0, byte_of(rest, std::max<std::int64_t>(0, end - begin)));
    run.make(made.size());
    return Value(std::string(made), value.safe());
  }
  const std::vector<Value> all = items_of(run, value);
  List made{.items = {}, .row = value.list() != nullptr ? value.list()->row : Row::list};
  // A step beyond the ends is one that is not taken twice.
  const std::int64_t stride = std::clamp(step, -count - 1, count + 1);
  for (std::int64_t i = begin; stride < 0 ? i > end : i < end; i += stride) {
    made.items.push_back(all[static_cast<std::size_t>(i)]);
  }
  run.make(made.items.size() * sizeof(Value));
  return value.text() ? joined(run, made.items) : Value(std::move(made));
}

std::vector<Value> items_of(Run& run, const Value& value) {
  std::vector<Value> items;
  if (value.undefined()) {
    return items;
  }
  if (value.list() != nullptr) {
    items = value.list()->items;
  } else if (const Dict* dict = value.dict()) {
    for (const Dict::Item& item : dict->items()) {
      items.push_back(item.first);
    }
  } else if (value.text()) {
    run.make(value.as_text().size() * sizeof(Value));
    for (std::string_view rest = value.as_text(); !rest.empty();) {
      const std::size_t length = utf8_length(rest);
      items.emplace_back(std::string(rest.substr(0, length)));
      rest.remove_prefix(length);
    }
  } else {
    refuse("a {} has no items: expected a list, a dictionary or a text", value.type());
  }
  run.make(items.size() * sizeof(Value));
  return items;
}

std::int64_t length_of(const Value& value) {
  if (value.undefined()) {
    return 0;
  }
  if (value.text()) {
    return characters(value.as_text());
  }
  if ((value.list() == nullptr || value.list()->row == Row::generator) && value.dict() == nullptr) {
    refuse("a {} has no length", value.type());
  }
  return static_cast<std::int64_t>(value.list() != nullptr ? value.list()->items.size() : value.dict()->items().size());
}

}  // namespace orthant::jinja
