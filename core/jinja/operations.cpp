#include "core/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/jinja/characters.h"
#include "core/jinja/value_text.h"
#include "core/tokenizer/utf8.h"

namespace orthant::jinja {
namespace {

[[noreturn]] void refuse_undefined(const Value& value) {
  refuse("'{}' is undefined", value.name());
}

// Of two numbers of which one is no whole one, or of two whole ones.
int compare_numbers(const Value& a, const Value& b) {
  if (a.floating() || b.floating()) {
    const double x = a.as_double(), y = b.as_double();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  return a.as_integer() < b.as_integer() ? -1 : a.as_integer() > b.as_integer() ? 1 : 0;
}

void check_overflow(bool overflows) {
  if (overflows) {
    refuse("a whole number beyond 64 bits is not done here");
  }
}

std::int64_t floor_of(std::int64_t a, std::int64_t b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value of_integers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t made = 0;
  switch (op) {
    case Operator::add: check_overflow(__builtin_add_overflow(a, b, &made)); return Value(made);
    case Operator::subtract: check_overflow(__builtin_sub_overflow(a, b, &made)); return Value(made);
    case Operator::multiply: check_overflow(__builtin_mul_overflow(a, b, &made)); return Value(made);
    case Operator::divide: return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::floor_divide: return b == -1 ? of_integers(Operator::subtract, 0, a) : Value(floor_of(a, b));
    case Operator::modulo: return b == -1 ? Value(std::int64_t{0}) : Value(a - floor_of(a, b) * b);
    case Operator::power: break;
  }
  if (b < 0) {
    return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  if (a >= -1 && a <= 1) {
    return Value(b == 0 || (a == -1 && b % 2 == 0) ? std::int64_t{1} : a);
  }
  made = 1;
  for (std::int64_t i = 0; i < b; ++i) {
    check_overflow(__builtin_mul_overflow(made, a, &made));
  }
  return Value(made);
}

Value of_doubles(Operator op, double a, double b) {
  switch (op) {
    case Operator::add: return Value(a + b);
    case Operator::subtract: return Value(a - b);
    case Operator::multiply: return Value(a * b);
    case Operator::divide: return Value(a / b);
    case Operator::floor_divide: return Value(std::floor(a / b));
    case Operator::modulo: return Value(floor_modulo(a, b));
    case Operator::power: return Value(std::pow(a, b));
  }
  return {};
}

Value repeated(Run& run, const Value& value, std::int64_t count) {
  count = std::max<std::int64_t>(0, count);
  const std::size_t size = value.text() ? value.as_text().size() : value.list()->items.size() * sizeof(Value);
  if (size > 0 && count > (std::int64_t{1} << 40) / static_cast<std::int64_t>(size)) {
    refuse("{} copies of a {}", count, value.type());
  }
  run.make(size * static_cast<std::size_t>(count));
  if (value.text()) {
    std::string made;
    for (std::int64_t i = 0; i < count && size > 0; ++i) {
      made += value.as_text();
    }
    return Value(std::move(made), value.safe());
  }
  List made{.items = {}, .tuple = value.list()->tuple};
  for (std::int64_t i = 0; i < count && size > 0; ++i) {
    made.items.insert(made.items.end(), value.list()->items.begin(), value.list()->items.end());
  }
  return Value(std::move(made));
}

Value appended(Run& run, const Value& a, const Value& b) {
  if (a.text()) {
    return joined(run, {a, b});
  }
  run.make((a.list()->items.size() + b.list()->items.size()) * sizeof(Value));
  List made{.items = a.list()->items, .tuple = a.list()->tuple};
  made.items.insert(made.items.end(), b.list()->items.begin(), b.list()->items.end());
  return Value(std::move(made));
}

const char* sign_of(Operator op) {
  constexpr const char* signs[] = {"+", "-", "*", "/", "//", "%", "**"};
  return signs[static_cast<int>(op)];
}

}  // namespace

bool equal(Run& run, const Value& a, const Value& b) {
  run.spend();
  if (a.undefined() || b.undefined()) {
    return a.undefined() && b.undefined();
  }
  if (a.number() && b.number()) {
    return compare_numbers(a, b) == 0;
  }
  if (a.text() && b.text()) {
    run.spend(static_cast<std::int64_t>(std::min(a.as_text().size(), b.as_text().size()) / 64));
    return a.as_text() == b.as_text();
  }
  if (const List *x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    return x->tuple == y->tuple &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(),
                      [&](const Value& one, const Value& other) { return equal(run, one, other); });
  }
  if (const Dict *x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
    return x->items().size() == y->items().size() &&
           std::all_of(x->items().begin(), x->items().end(), [&](const Dict::Item& item) {
             const Value* other = y->find(item.first);
             return other != nullptr && equal(run, item.second, *other);
           });
  }
  return (a.none() && b.none()) || (a.identity() != nullptr && a.identity() == b.identity());
}

bool less(Run& run, const Value& a, const Value& b) {
  run.spend();
  if (a.number() && b.number()) {
    return compare_numbers(a, b) == -1;
  }
  if (a.text() && b.text()) {
    run.spend(static_cast<std::int64_t>(std::min(a.as_text().size(), b.as_text().size()) / 64));
    return a.as_text() < b.as_text();  // bytes of UTF-8 stand in the order of code points
  }
  if (const List *x = a.list(), *y = b.list(); x != nullptr && y != nullptr && x->tuple == y->tuple) {
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!equal(run, x->items[i], y->items[i])) {
        return less(run, x->items[i], y->items[i]);
      }
    }
    return x->items.size() < y->items.size();
  }
  for (const Value* value : {&a, &b}) {
    if (value->undefined()) {
      refuse_undefined(*value);
    }
  }
  refuse("'{}' and '{}' have no order", a.type(), b.type());
}

bool contains(Run& run, const Value& all, const Value& part) {
  if (all.undefined()) {
    return false;
  }
  if (all.text()) {
    if (!part.text()) {
      refuse("'in' looks for a {} in a text: expected a text", part.undefined() ? "'" + part.name() + "', undefined," : part.type());
    }
    run.spend(static_cast<std::int64_t>(all.as_text().size() / 16));
    return all.as_text().find(part.as_text()) != std::string::npos;
  }
  if (const Dict* dict = all.dict()) {
    return dict->find(part) != nullptr;
  }
  if (const List* list = all.list()) {
    return std::any_of(list->items.begin(), list->items.end(), [&](const Value& one) { return equal(run, one, part); });
  }
  refuse("'in' looks into a {}: expected a list, a dictionary or a text", all.type());
}

Value arithmetic(Run& run, Operator op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->undefined()) {
      refuse_undefined(*value);
    }
  }
  if (a.number() && b.number()) {
    const bool divides = op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo;
    if ((divides && b.as_double() == 0) || (op == Operator::power && a.as_double() == 0 && b.as_double() < 0)) {
      refuse("division by zero");
    }
    return a.floating() || b.floating() ? of_doubles(op, a.as_double(), b.as_double())
                                        : of_integers(op, a.as_integer(), b.as_integer());
  }
  const auto row = [](const Value& value) { return value.text() || value.list() != nullptr; };
  if (op == Operator::multiply && row(a) && (b.integer() || b.boolean())) {
    return repeated(run, a, b.as_integer());
  }
  if (op == Operator::multiply && row(b) && (a.integer() || a.boolean())) {
    return repeated(run, b, a.as_integer());
  }
  const bool lists = a.list() != nullptr && b.list() != nullptr && a.list()->tuple == b.list()->tuple;
  if (op == Operator::add && ((a.text() && b.text()) || lists)) {
    return appended(run, a, b);
  }
  if (op == Operator::modulo && a.text()) {
    refuse("text % values is not done here: join texts with ~");
  }
  refuse("{} {} {} cannot be computed", a.type(), sign_of(op), b.type());
}

Value negative(const Value& value) {
  if (value.undefined()) {
    refuse_undefined(value);
  }
  if (!value.number()) {
    refuse("- {} cannot be computed", value.type());
  }
  return value.floating() ? Value(-value.as_double()) : of_integers(Operator::subtract, 0, value.as_integer());
}

Value joined(Run& run, const std::vector<Value>& values) {
  const bool safe = std::any_of(values.begin(), values.end(), [](const Value& value) { return value.safe(); });
  std::string made;
  for (const Value& value : values) {
    const std::string text = to_text(run, value);
    made += safe && !value.safe() ? escaped(text) : text;
  }
  run.make(made.size());
  return Value(std::move(made), safe);
}

Value item(Run& run, const Value& value, const Value& key) {
  if (value.undefined()) {
    refuse_undefined(value);
  }
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(key)) {
      return *found;
    }
  } else if ((key.integer() || key.boolean()) && (value.list() != nullptr || value.text())) {
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
  if (!value.text() && value.list() == nullptr) {
    return Undefined{fmt::format("a slice of a {}", value.type())};
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
  List made{.items = {}, .tuple = value.list() != nullptr && value.list()->tuple};
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
  if (value.list() == nullptr && value.dict() == nullptr) {
    refuse("a {} has no length", value.type());
  }
  return static_cast<std::int64_t>(value.list() != nullptr ? value.list()->items.size() : value.dict()->items().size());
}

Value call(Run& run, const Value& callable, Arguments& arguments) {
  if (callable.undefined()) {
    refuse_undefined(callable);
  }
  const Callable* function = callable.callable();
  if (function == nullptr) {
    refuse("a {} is no function", callable.type());
  }
  const Run::Deeper deeper(run);
  run.spend();
  return function->call(run, arguments);
}

Value made_text(Run& run, std::string text) {
  run.make(text.size());
  return Value(std::move(text));
}

Value made_list(Run& run, std::vector<Value> items) {
  run.make(items.size() * sizeof(Value));
  return Value(List{.items = std::move(items)});
}

std::int64_t integer_of(const Value& value, const char* what) {
  if (value.undefined()) {
    refuse_undefined(value);
  }
  if (!value.integer() && !value.boolean()) {
    refuse("{} is a {}: expected a whole number", what, value.type());
  }
  return value.as_integer();
}

const std::string& text_of(const Value& value, const char* what) {
  if (value.undefined()) {
    refuse_undefined(value);
  }
  if (!value.text()) {
    refuse("{} is a {}: expected a text", what, value.type());
  }
  return value.as_text();
}

}  // namespace orthant::jinja
