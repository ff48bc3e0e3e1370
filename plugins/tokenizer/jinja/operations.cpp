#include "plugins/tokenizer/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plugins/tokenizer/jinja/value_text.h"

namespace orthant::jinja {
namespace {

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
  List made{.items = {}, .row = value.list()->row};
  for (std::int64_t i = 0; i < count && size > 0; ++i) {
    made.items.insert(made.items.end(), value.list()->items.begin(), value.list()->items.end());
  }
  return Value(std::move(made));
}

Value appended(Run& run, const Value& a, const Value& b) {
  if (a.text()) {
    const bool safe = a.safe() || b.safe();
    std::string made = safe && !a.safe() ? escaped(a.as_text()) : a.as_text();
    made += safe && !b.safe() ? escaped(b.as_text()) : b.as_text();
    run.make(made.size());
    return Value(std::move(made), safe);
  }
  run.make((a.list()->items.size() + b.list()->items.size()) * sizeof(Value));
  List made{.items = a.list()->items, .row = a.list()->row};
  made.items.insert(made.items.end(), b.list()->items.begin(), b.list()->items.end());
  return Value(std::move(made));
}

const char* sign_of(Operator op) {
  constexpr const char* signs[] = {"+", "-", "*", "/", "//", "%", "**"};
  return signs[static_cast<int>(op)];
}

}  // namespace

void refuse_undefined(const Value& value) {
  refuse("'{}' is undefined", value.name());
}

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
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    return x->row == y->row && std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(),
                                          [&](const Value& one, const Value& other) { return equal(run, one, other); });
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
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
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr && x->row == y->row) {
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
      refuse("'in' looks for a {} in a text: expected a text",
             part.undefined() ? "'" + part.name() + "', undefined," : part.type());
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
  const auto joins = [](const Value& value) {
    return value.text() ||
           (value.list() != nullptr && (value.list()->row == Row::list || value.list()->row == Row::tuple));
  };
  if (op == Operator::multiply && joins(a) && (b.integer() || b.boolean())) {
    return repeated(run, a, b.as_integer());
  }
  if (op == Operator::multiply && joins(b) && (a.integer() || a.boolean())) {
    return repeated(run, b, a.as_integer());
  }
  const bool lists = a.list() != nullptr && b.list() != nullptr && a.list()->row == b.list()->row && joins(a);
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
  std::string made;
  for (const Value& value : values) {
    made += to_text(run, value);
  }
  run.make(made.size());
  return Value(std::move(made));
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

Value made_list(Run& run, std::vector<Value> items, Row row) {
  run.make(items.size() * sizeof(Value));
  return Value(List{.items = std::move(items), .row = row});
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
