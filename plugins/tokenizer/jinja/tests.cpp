#include "plugins/tokenizer/jinja/characters.h"
#include "plugins/tokenizer/jinja/filters.h"
#include "plugins/tokenizer/jinja/functions.h"
#include "plugins/tokenizer/jinja/operations.h"

namespace orthant::jinja {
namespace {

const Value& other_of(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    refuse("this test takes one value to compare with");
  }
  return arguments.positional[0];
}

std::int64_t whole(const Value& value) {
  return integer_of(value, "what is tested for odd, even or divisibleby");
}

bool is_divisible(Run& run, const Value& value, Arguments& arguments) {
  const Value rest = arithmetic(run, Operator::modulo, Value(whole(value)), Value(whole(other_of(arguments))));
  return rest.as_integer() == 0;
}

bool is_lower(Run&, const Value& value, Arguments&) {
  const std::string text = text_of(value, "what is tested for lower");
  return in_case(text, Case::lower) == text && in_case(text, Case::upper) != text;
}

bool is_upper(Run&, const Value& value, Arguments&) {
  const std::string text = text_of(value, "what is tested for upper");
  return in_case(text, Case::upper) == text && in_case(text, Case::lower) != text;
}

bool is_known_filter(Run&, const Value& value, Arguments&) {
  return value.text() && filter_named(value.as_text()) != nullptr;
}

bool is_known_test(Run&, const Value& value, Arguments&) {
  return value.text() && test_named(value.as_text()) != nullptr;
}

bool has_items(const Value& value) {
  return value.text() || value.list() != nullptr || value.dict() != nullptr || value.undefined();
}

}  // namespace

Test test_named(const std::string& name) {
  using Args = Arguments&;
  static constexpr std::pair<const char*, Test> tests[] = {
      {"defined", [](Run&, const Value& v, Args) { return !v.undefined(); }},
      {"undefined", [](Run&, const Value& v, Args) { return v.undefined(); }},
      {"none", [](Run&, const Value& v, Args) { return v.none(); }},
      {"boolean", [](Run&, const Value& v, Args) { return v.boolean(); }},
      {"true", [](Run&, const Value& v, Args) { return v.boolean() && v.truth(); }},
      {"false", [](Run&, const Value& v, Args) { return v.boolean() && !v.truth(); }},
      {"integer", [](Run&, const Value& v, Args) { return v.integer(); }},
      {"float", [](Run&, const Value& v, Args) { return v.floating(); }},
      {"number", [](Run&, const Value& v, Args) { return v.number(); }},
      {"string", [](Run&, const Value& v, Args) { return v.text(); }},
      {"mapping", [](Run&, const Value& v, Args) { return v.dict() != nullptr; }},
      {"sequence", [](Run&, const Value& v, Args) { return has_items(v); }},
      {"iterable", [](Run&, const Value& v, Args) { return has_items(v); }},
      {"callable", [](Run&, const Value& v, Args) { return v.callable() != nullptr; }},
      {"odd", [](Run&, const Value& v, Args) { return whole(v) % 2 != 0; }},
      {"even", [](Run&, const Value& v, Args) { return whole(v) % 2 == 0; }},
      {"divisibleby", is_divisible},
      {"lower", is_lower},
      {"upper", is_upper},
      {"filter", is_known_filter},
      {"test", is_known_test},
      {"sameas",
       [](Run& run, const Value& v, Args a) {
         const Value& other = other_of(a);
         return v.identity() == other.identity() && std::string_view(v.type()) == other.type() && equal(run, v, other);
       }},
      {"in", [](Run& run, const Value& v, Args a) { return contains(run, other_of(a), v); }},
      {"eq", [](Run& run, const Value& v, Args a) { return equal(run, v, other_of(a)); }},
      {"equalto", [](Run& run, const Value& v, Args a) { return equal(run, v, other_of(a)); }},
      {"==", [](Run& run, const Value& v, Args a) { return equal(run, v, other_of(a)); }},
      {"ne", [](Run& run, const Value& v, Args a) { return !equal(run, v, other_of(a)); }},
      {"!=", [](Run& run, const Value& v, Args a) { return !equal(run, v, other_of(a)); }},
      {"lt", [](Run& run, const Value& v, Args a) { return less(run, v, other_of(a)); }},
      {"lessthan", [](Run& run, const Value& v, Args a) { return less(run, v, other_of(a)); }},
      {"<", [](Run& run, const Value& v, Args a) { return less(run, v, other_of(a)); }},
      {"gt", [](Run& run, const Value& v, Args a) { return less(run, other_of(a), v); }},
      {"greaterthan", [](Run& run, const Value& v, Args a) { return less(run, other_of(a), v); }},
      {">", [](Run& run, const Value& v, Args a) { return less(run, other_of(a), v); }},
      {"le", [](Run& run, const Value& v, Args a) { return less(run, v, other_of(a)) || equal(run, v, other_of(a)); }},
      {"<=", [](Run& run, const Value& v, Args a) { return less(run, v, other_of(a)) || equal(run, v, other_of(a)); }},
      {"ge", [](Run& run, const Value& v, Args a) { return less(run, other_of(a), v) || equal(run, v, other_of(a)); }},
      {">=", [](Run& run, const Value& v, Args a) { return less(run, other_of(a), v) || equal(run, v, other_of(a)); }},
  };
  for (const auto& [known, test] : tests) {
    if (name == known) {
      return test;
    }
  }
  return nullptr;
}

}  // namespace orthant::jinja
