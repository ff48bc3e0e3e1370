#include "plugins/tokenizer/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/utf8.h"
#include "plugins/tokenizer/jinja/characters.h"
#include "plugins/tokenizer/jinja/functions.h"
#include "plugins/tokenizer/jinja/operations.h"
#include "plugins/tokenizer/jinja/value_text.h"

namespace orthant::jinja {
namespace {

Value safe(Run& run, const Value& value, Arguments& arguments) {
  taken("safe", arguments, {});
  return Value(to_text(run, value), true);
}

Value escape(Run& run, const Value& value, Arguments& arguments) {
  taken("escape", arguments, {});
  return value.safe() ? value : Value(escaped(to_text(run, value)), true);
}

Value trim(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("trim", arguments, {"chars"});
  const bool chars = given[0].has_value() && !given[0]->none();
  const std::string text = to_text(run, value);
  return made_text(run, std::string(stripped(text, true, true, chars ? &text_of(*given[0], "trim's chars") : nullptr)));
}

// The first letter of each word, which begins behind white space, a hyphen or an opening bracket.
Value title(Run& run, const Value& value, Arguments& arguments) {
  taken("title", arguments, {});
  const std::string text = to_text(run, value);
  std::string made;
  bool begins = true;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view one = rest.substr(0, utf8_length(rest));
    made += in_case(one, begins ? Case::upper : Case::lower);
    begins = is_space(utf8_code(one)) || std::string_view("-({[<").find(one) != std::string_view::npos;
    rest.remove_prefix(one.size());
  }
  return made_text(run, std::move(made));
}

template <Case wanted>
Value in_case_filter(Run& run, const Value& value, Arguments& arguments) {
  taken("upper, lower or capitalize", arguments, {});
  return made_text(run, in_case(to_text(run, value), wanted));
}

Value length(Run&, const Value& value, Arguments& arguments) {
  taken("length", arguments, {});
  return Value(length_of(value));
}

Value otherwise(Run&, const Value& value, Arguments& arguments) {
  const auto given = taken("default", arguments, {"default_value", "boolean"});
  const bool empty_too = given[1].has_value() && given[1]->truth();
  return value.undefined() || (empty_too && !value.truth()) ? given[0].value_or(Value("")) : value;
}

Value string(Run& run, const Value& value, Arguments& arguments) {
  taken("string", arguments, {});
  return value.text() ? value : made_text(run, to_text(run, value));
}

Value integer(Run&, const Value& value, Arguments& arguments) {
  const auto given = taken("int", arguments, {"default", "base"});
  if (given[1].has_value()) {
    refuse("int with a base is not done here");
  }
  const Value instead = given[0].value_or(Value(std::int64_t{0}));
  if (value.integer() || value.boolean()) {
    return Value(value.as_integer());
  }
  double number = value.floating() ? value.as_double() : NAN;
  if (value.text()) {
    const std::string_view text = stripped(value.as_text(), true, true);
    const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
    std::int64_t whole = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
    if (read.ec == std::errc() && read.ptr == digits.data() + digits.size()) {
      return Value(whole);
    }
    const auto real = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (real.ec != std::errc() || real.ptr != digits.data() + digits.size()) {
      return instead;
    }
  }
  if (!std::isfinite(number)) {
    return instead;
  }
  if (std::abs(number) >= 0x1p63) {
    refuse("a whole number beyond 64 bits is not done here");
  }
  return Value(static_cast<std::int64_t>(number));
}

Value real(Run&, const Value& value, Arguments& arguments) {
  const auto given = taken("float", arguments, {"default"});
  if (value.number()) {
    return Value(value.as_double());
  }
  if (value.text()) {
    const std::string_view text = stripped(value.as_text(), true, true);
    const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
    double number = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (read.ec == std::errc() && read.ptr == digits.data() + digits.size()) {
      return Value(number);
    }
  }
  return given[0].value_or(Value(0.0));
}

Value absolute(Run&, const Value& value, Arguments& arguments) {
  taken("abs", arguments, {});
  if (!value.number()) {
    refuse("abs of a {}: expected a number", value.type());
  }
  return value.as_double() < 0 ? negative(value) : negative(negative(value));
}

Value rounded(Run&, const Value& value, Arguments& arguments) {
  const auto given = taken("round", arguments, {"precision", "method"});
  const std::int64_t digits = given[0].has_value() ? integer_of(*given[0], "round's precision") : 0;
  const std::string method = given[1].has_value() ? text_of(*given[1], "round's method") : "common";
  if (!value.number() || digits < 0 || digits > 15) {
    refuse("round takes a number and 0 to 15 digits");
  }
  const double number = value.as_double(), scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil" || method == "floor") {
    return Value((method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale);
  }
  if (method != "common") {
    refuse("round's method '{}': expected common, ceil or floor", method);
  }
  // As its digits say it: what lies in the middle goes to the even digit.
  const double made = std::strtod(fmt::format("{:.{}f}", number, digits).c_str(), nullptr);
  return value.floating() ? Value(made) : Value(value.as_integer());
}

Value replaced(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("replace", arguments, {"old", "new", "count"});
  if (!given[0].has_value() || !given[1].has_value()) {
    refuse("replace takes a text and what stands in its place");
  }
  Arguments of_method{.positional = {Value(to_text(run, *given[0])), Value(to_text(run, *given[1]))}, .named = {}};
  if (given[2].has_value() && !given[2]->none()) {
    of_method.positional.push_back(*given[2]);
  }
  return call(run, *method(run, Value(to_text(run, value)), "replace"), of_method);
}

Value indent(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("indent", arguments, {"width", "first", "blank"});
  const Value width = given[0].value_or(Value(std::int64_t{4}));
  const std::string space =
      width.text()
          ? width.as_text()
          : std::string(
                static_cast<std::size_t>(std::clamp<std::int64_t>(integer_of(width, "indent's width"), 0, 1000)), ' ');
  const bool first = given[1].has_value() && given[1]->truth(), blank = given[2].has_value() && given[2]->truth();
  const std::string text = text_of(value, "what is indented") + "\n";
  std::string made;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string_view line = std::string_view(text).substr(at, end - at);
    made += at == 0 ? (first ? space : "") : line.empty() && !blank ? "" : space;
    made += line;
    made += end + 1 < text.size() ? "\n" : "";
    at = end + 1;
    run.make(space.size() + line.size());
  }
  // Jinja's text ends in its own last line end, if it has one.
  return Value(std::move(made));
}

Value json(Run& run, const Value& value, Arguments& arguments) {
  const auto given = taken("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonForm form;
  form.ascii = given[0].has_value() && given[0]->truth();
  if (given[1].has_value() && !given[1]->none()) {
    form.indent = std::clamp<std::int64_t>(integer_of(*given[1], "tojson's indent"), 0, 1000);
    form.between = ",";
  }
  if (given[2].has_value() && !given[2]->none()) {
    const std::vector<Value> texts = items_of(run, *given[2]);
    if (texts.size() != 2) {
      refuse("tojson's separators: expected two texts");
    }
    form.between = text_of(texts[0], "a separator");
    form.behind_key = text_of(texts[1], "a separator");
  }
  form.sorted = given[3].has_value() && given[3]->truth();
  return made_text(run, to_json(run, value, form));
}

}  // namespace

Filter value_filter_named(const std::string& name) {
  constexpr std::pair<const char*, Filter> filters[] = {
      {"abs", absolute},      {"capitalize", in_case_filter<Case::capital>},
      {"count", length},      {"d", otherwise},
      {"default", otherwise}, {"e", escape},
      {"escape", escape},     {"float", real},
      {"indent", indent},     {"int", integer},
      {"length", length},     {"lower", in_case_filter<Case::lower>},
      {"replace", replaced},  {"round", rounded},
      {"safe", safe},         {"string", string},
      {"title", title},       {"tojson", json},
      {"trim", trim},         {"upper", in_case_filter<Case::upper>}};
  for (const auto& [known, filter] : filters) {
    if (name == known) {
      return filter;
    }
  }
  return nullptr;
}

Filter filter_named(const std::string& name) {
  const Filter found = value_filter_named(name);
  return found != nullptr ? found : row_filter_named(name);
}

}  // namespace orthant::jinja
