#include "plugins/tokenizer/jinja/text_methods.h"

#include <algorithm>
#include <limits>

#include "core/base/utf8.h"
#include "plugins/tokenizer/jinja/characters.h"
#include "plugins/tokenizer/jinja/functions.h"
#include "plugins/tokenizer/jinja/operations.h"
#include "plugins/tokenizer/jinja/value_text.h"

namespace orthant::jinja {
namespace {

const std::string& needed(const std::optional<Value>& given, const char* what) {
  if (!given.has_value()) {
    refuse("{} is missing", what);
  }
  return text_of(*given, what);
}

template <bool left, bool right>
Value strip(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("strip", arguments, {"chars"});
  const bool chars = given[0].has_value() && !given[0]->none();
  const std::string* set = chars ? &text_of(*given[0], "what strip takes away") : nullptr;
  run.spend(static_cast<std::int64_t>(set != nullptr ? set->size() / 16 : 0));
  return made_text(run, std::string(stripped(of.as_text(), left, right, set)));
}

template <Case wanted>
Value cased(Run& run, const Value& of, Arguments& arguments) {
  taken("a method of texts", arguments, {});
  return made_text(run, in_case(of.as_text(), wanted));
}

// One text, or one of several.
template <bool begin>
Value begins(Run&, const Value& of, Arguments& arguments) {
  const auto given = taken(begin ? "startswith" : "endswith", arguments, {"text"});
  if (!given[0].has_value()) {
    refuse("startswith and endswith take a text");
  }
  const List* several = given[0]->list();
  const auto fits = [&](const Value& part) {
    const std::string& text = text_of(part, "what startswith or endswith looks for");
    return begin ? of.as_text().starts_with(text) : of.as_text().ends_with(text);
  };
  return Value(several != nullptr ? std::any_of(several->items.begin(), several->items.end(), fits) : fits(*given[0]));
}

// At most `most` cuts at white space, from the left or from the right.
std::vector<std::string_view> words_of(std::string_view text, std::int64_t most, bool from_right) {
  std::vector<std::string_view> words;
  for (text = stripped(text, true, true); !text.empty();) {
    std::size_t begin = 0, end = text.size();
    if (static_cast<std::int64_t>(words.size()) < most) {
      if (from_right) {
        for (begin = text.size(); begin > 0;) {
          const std::size_t at = last_character(text.substr(0, begin));
          if (is_space(utf8_code(text.substr(at)))) {
            break;
          }
          begin = at;
        }
      } else {
        for (end = 0; end < text.size() && !is_space(utf8_code(text.substr(end)));) {
          end += utf8_length(text.substr(end));
        }
      }
    }
    words.push_back(text.substr(begin, end - begin));
    text = from_right ? stripped(text.substr(0, begin), false, true) : stripped(text.substr(end), true, false);
  }
  if (from_right) {
    std::reverse(words.begin(), words.end());
  }
  return words;
}

template <bool from_right>
Value split(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("split", arguments, {"sep", "maxsplit"});
  const std::int64_t asked = given[1].has_value() ? integer_of(*given[1], "split's maxsplit") : -1;
  const std::int64_t most = asked < 0 ? std::numeric_limits<std::int64_t>::max() : asked;
  std::vector<std::string_view> parts;
  std::string_view rest = of.as_text();
  run.make(rest.size());
  if (!given[0].has_value() || given[0]->none()) {
    parts = words_of(rest, most, from_right);
  } else {
    const std::string& separator = text_of(*given[0], "split's separator");
    if (separator.empty()) {
      refuse("split at an empty text");
    }
    while (static_cast<std::int64_t>(parts.size()) < most) {
      const std::size_t at = from_right ? rest.rfind(separator) : rest.find(separator);
      if (at == std::string_view::npos) {
        break;
      }
      parts.push_back(from_right ? rest.substr(at + separator.size()) : rest.substr(0, at));
      rest = from_right ? rest.substr(0, at) : rest.substr(at + separator.size());
    }
    parts.push_back(rest);
    if (from_right) {
      std::reverse(parts.begin(), parts.end());
    }
  }
  std::vector<Value> made;
  for (const std::string_view part : parts) {
    run.make(sizeof(Value) + sizeof(std::string));
    made.emplace_back(std::string(part));
  }
  return made_list(run, std::move(made));
}

Value lines(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("splitlines", arguments, {"keepends"});
  const bool keeps = given[0].has_value() && given[0]->truth();
  const auto ends_line = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<Value> made;
  std::string_view rest = of.as_text();
  while (!rest.empty()) {
    std::size_t end = 0, next = 0;
    while (end < rest.size() && !ends_line(utf8_code(rest.substr(end)))) {
      end += utf8_length(rest.substr(end));
    }
    next = end < rest.size() ? end + (rest.substr(end).starts_with("\r\n") ? 2 : utf8_length(rest.substr(end))) : end;
    run.make(next + sizeof(Value) + sizeof(std::string));
    made.emplace_back(std::string(rest.substr(0, keeps ? next : end)));
    rest.remove_prefix(next);
  }
  return made_list(run, std::move(made));
}

Value replace(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("replace", arguments, {"old", "new", "count"});
  const std::string &old = needed(given[0], "what replace looks for"),
                    &by = needed(given[1], "what replace puts there");
  const std::int64_t asked = given[2].has_value() ? integer_of(*given[2], "replace's count") : -1;
  std::int64_t left = asked < 0 ? std::numeric_limits<std::int64_t>::max() : asked;
  std::string made;
  std::string_view rest = of.as_text();
  run.make(rest.size());
  while (left > 0) {
    const std::size_t at = rest.find(old);
    if (at == std::string_view::npos) {
      break;
    }
    run.make(by.size() + 1);
    made += rest.substr(0, at);
    made += by;
    // An empty text stands before every character, and behind the last.
    const std::size_t kept = old.empty() ? (rest.empty() ? 0 : utf8_length(rest)) : 0;
    made += rest.substr(0, kept);
    --left;
    if (old.empty() && rest.empty()) {
      break;
    }
    rest.remove_prefix(old.empty() ? kept : at + old.size());
  }
  made += rest;
  return Value(std::move(made));
}

Value join(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("join", arguments, {"texts"});
  std::string made;
  bool begun = false;
  for (const Value& one : items_of(run, given[0].value_or(Value(Undefined{"texts"})))) {
    const std::string& text = text_of(one, "what join joins");
    run.make(text.size() + of.as_text().size());
    made += begun ? of.as_text() : "";
    made += text;
    begun = true;
  }
  return Value(std::move(made));
}

// The character at which a text stands; -1: nowhere.
template <bool from_right, bool must>
Value find(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("find", arguments, {"text"});
  const std::string& text = needed(given[0], "what find looks for");
  run.make(of.as_text().size());
  const std::size_t at = from_right ? of.as_text().rfind(text) : of.as_text().find(text);
  if (must && at == std::string::npos) {
    refuse("index: the text is not there");
  }
  return Value(at == std::string::npos ? -1 : characters(std::string_view(of.as_text()).substr(0, at)));
}

Value count(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("count", arguments, {"text"});
  const std::string& text = needed(given[0], "what count looks for");
  run.make(of.as_text().size());
  if (text.empty()) {
    return Value(characters(of.as_text()) + 1);
  }
  std::int64_t found = 0;
  for (std::size_t at = of.as_text().find(text); at != std::string::npos;
       at = of.as_text().find(text, at + text.size())) {
    ++found;
  }
  return Value(found);
}

template <bool from_right>
Value partition(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("partition", arguments, {"sep"});
  const std::string &separator = needed(given[0], "partition's separator"), &text = of.as_text();
  if (separator.empty()) {
    refuse("partition at an empty text");
  }
  run.make(text.size() + 3 * sizeof(Value));
  const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = from_right ? std::vector{Value(""), Value(""), of} : std::vector{of, Value(""), Value("")};
  } else {
    parts = {Value(text.substr(0, at)), Value(separator), Value(text.substr(at + separator.size()))};
  }
  return Value(List{.items = std::move(parts), .row = Row::tuple});
}

template <bool begin>
Value without(Run& run, const Value& of, Arguments& arguments) {
  const auto given = taken("removeprefix", arguments, {"text"});
  const std::string &part = needed(given[0], "what removeprefix or removesuffix takes away"), &text = of.as_text();
  const bool there = begin ? text.starts_with(part) : text.ends_with(part);
  return made_text(run, !there ? text : begin ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
}

// Whether all characters are of a kind, and there is one.
template <class Wanted>
Value all_are(Run& run, const Value& of, const char* name, Arguments& arguments, Wanted&& wanted) {
  taken(name, arguments, {});
  std::string_view text = of.as_text();
  run.make(text.size());
  bool all = !text.empty();
  for (; all && !text.empty(); text.remove_prefix(utf8_length(text))) {
    all = wanted(utf8_code(text));
  }
  return Value(all);
}

Value all_digits(Run& run, const Value& of, Arguments& arguments) {
  return all_are(run, of, "isdigit", arguments, is_digit);
}

Value all_letters(Run& run, const Value& of, Arguments& arguments) {
  return all_are(run, of, "isalpha", arguments, is_letter);
}

Value all_letters_or_digits(Run& run, const Value& of, Arguments& arguments) {
  return all_are(run, of, "isalnum", arguments, [](char32_t c) { return is_letter(c) || is_digit(c); });
}

Value all_space(Run&, const Value& of, Arguments& arguments) {
  taken("isspace", arguments, {});
  return Value(!of.as_text().empty() && stripped(of.as_text(), true, false).empty());
}

template <Case wanted>
Value all_in_case(Run& run, const Value& of, Arguments& arguments) {
  taken("isupper", arguments, {});
  run.make(of.as_text().size());
  constexpr Case other = wanted == Case::upper ? Case::lower : Case::upper;
  return Value(in_case(of.as_text(), wanted) == of.as_text() && in_case(of.as_text(), other) != of.as_text());
}

}  // namespace

TextMethod text_method(const std::string& name) {
  constexpr std::pair<const char*, TextMethod> methods[] = {{"strip", strip<true, true>},
                                                            {"lstrip", strip<true, false>},
                                                            {"rstrip", strip<false, true>},
                                                            {"upper", cased<Case::upper>},
                                                            {"lower", cased<Case::lower>},
                                                            {"title", cased<Case::title>},
                                                            {"capitalize", cased<Case::capital>},
                                                            {"startswith", begins<true>},
                                                            {"endswith", begins<false>},
                                                            {"split", split<false>},
                                                            {"rsplit", split<true>},
                                                            {"splitlines", lines},
                                                            {"replace", replace},
                                                            {"join", join},
                                                            {"find", find<false, false>},
                                                            {"rfind", find<true, false>},
                                                            {"index", find<false, true>},
                                                            {"rindex", find<true, true>},
                                                            {"count", count},
                                                            {"partition", partition<false>},
                                                            {"rpartition", partition<true>},
                                                            {"removeprefix", without<true>},
                                                            {"removesuffix", without<false>},
                                                            {"isdigit", all_digits},
                                                            {"isalpha", all_letters},
                                                            {"isalnum", all_letters_or_digits},
                                                            {"isspace", all_space},
                                                            {"isupper", all_in_case<Case::upper>},
                                                            {"islower", all_in_case<Case::lower>}};
  for (const auto& [known, method] : methods) {
    if (name == known) {
      return method;
    }
  }
  return nullptr;
}

}  // namespace orthant::jinja
