// What expressions do with values, by Python's rules in Jinja's sandbox. Errors: TemplateError.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugins/tokenizer/jinja/run.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

bool equal(Run& run, const Value& a, const Value& b);
bool less(Run& run, const Value& a, const Value& b);
bool contains(Run& run, const Value& whole, const Value& part);  // part in whole

enum class Operator { add, subtract, multiply, divide, floor_divide, modulo, power };
Value arithmetic(Run& run, Operator op, const Value& a, const Value& b);
Value negative(const Value& value);
// The texts of all, one behind the other.
Value joined(Run& run, const std::vector<Value>& values);

// value.name and value[key]: whichever of both there is, the method before the item in the first. Undefined: neither.
Value attribute(Run& run, const Value& value, const std::string& name);
Value item(Run& run, const Value& value, const Value& key);
struct Slice {
  std::optional<std::int64_t> begin, end, step;
};
Value slice(Run& run, const Value& value, const Slice& cut);

// Items of a list, keys of a dictionary, characters of a text; none of what is undefined.
std::vector<Value> items_of(Run& run, const Value& value);
std::int64_t length_of(const Value& value);

Value call(Run& run, const Value& callable, Arguments& arguments);

// The method of a text, list or dictionary, bound to it. Nothing: it has none of this name.
std::optional<Value> method(Run& run, const Value& value, const std::string& name);

// Whether a list, dictionary, text or `loop` has such a method.
bool method_known(const std::string& name);

// What was made, once it has been paid for.
Value made_text(Run& run, std::string text);
Value made_list(Run& run, std::vector<Value> items, Row row = Row::list);

[[noreturn]] void refuse_undefined(const Value& value);
// The whole number that an argument must be.
std::int64_t integer_of(const Value& value, const char* what);
const std::string& text_of(const Value& value, const char* what);

}  // namespace orthant::jinja
