#include "plugins/tokenizer/jinja/value_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/utf8.h"
#include "plugins/tokenizer/jinja/characters.h"

namespace orthant::jinja {
namespace {

// The shortest digits that say the number, with an exponent where Python has one.
std::string of_double(double number) {
  if (std::isnan(number)) {
    return "nan";
  }
  if (std::isinf(number)) {
    return number > 0 ? "inf" : "-inf";
  }
  const double size = std::abs(number);
  const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  char digits[400];
  const auto end = std::to_chars(digits, digits + sizeof digits, number,
                                 exponent ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(digits, end.ptr);
  return exponent || text.find('.') != std::string::npos ? text : text + ".0";
}

std::string in_quotes(std::string_view text) {
  const bool doubly = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubly ? '"' : '\'';
  std::string made(1, quote);
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char32_t code = utf8_code(text);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      made += '\\';
      made += text[0];
    } else if (code == '\n' || code == '\t' || code == '\r') {
      made += code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
    } else if (is_printable(code)) {
      made += text.substr(0, length);
    } else {
      const auto number = static_cast<std::uint32_t>(code);
      made += number < 0x100     ? fmt::format("\\x{:02x}", number)
              : number < 0x10000 ? fmt::format("\\u{:04x}", number)
                                 : fmt::format("\\U{:08x}", number);
    }
    text.remove_prefix(length);
  }
  return made + quote;
}

std::string in_json(std::string_view text, bool ascii) {
  std::string made = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto code = static_cast<std::uint32_t>(utf8_code(text));
    constexpr std::string_view letters = "\"\\\n\r\t\f\b", names = "\"\\nrtfb";
    if (const std::size_t at = code < 0x80 ? letters.find(static_cast<char>(code)) : std::string_view::npos;
        at != std::string_view::npos) {
      made += '\\';
      made += names[at];
    } else if (code < 0x20 || (ascii && code > 0x7E && code < 0x10000)) {
      made += fmt::format("\\u{:04x}", code);
    } else if (ascii && code >= 0x10000) {
      made += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      made += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return made + '"';
}

std::string json_key(Run& run, const Value& key, bool ascii) {
  if (key.text()) {
    return in_json(key.as_text(), ascii);
  }
  return "\"" + to_json(run, key, {}) + "\"";
}

void put_json(Run& run, std::string& to, const Value& value, const JsonForm& form, std::int64_t level) {
  run.spend();
  const std::size_t before = to.size();
  const auto line = [&](std::int64_t at) {
    if (form.indent.has_value()) {
      const auto spaces = static_cast<std::size_t>(*form.indent * at);
      run.make(spaces);
      to += '\n';
      to.append(spaces, ' ');
    }
  };
  if (const List* list = value.list(); list != nullptr && (list->row == Row::list || list->row == Row::tuple)) {
    to += '[';
    bool first = true;
    for (const Value& item : list->items) {
      to += first ? "" : form.between;
      line(level + 1);
      put_json(run, to, item, form, level + 1);
      first = false;
    }
    if (!first) {
      line(level);
    }
    to += ']';
  } else if (const Dict* dict = value.dict()) {
    std::vector<const Dict::Item*> items;
    for (const Dict::Item& item : dict->items()) {
      items.push_back(&item);
    }
    if (form.sorted) {
      for (const Dict::Item* item : items) {
        if (!item->first.text()) {
          refuse("tojson(sort_keys=true) of keys that are no texts is not done here");
        }
      }
      std::stable_sort(items.begin(), items.end(), [](const Dict::Item* a, const Dict::Item* b) {
        return a->first.as_text() < b->first.as_text();
      });
    }
    to += '{';
    bool first = true;
    for (const Dict::Item* item : items) {
      to += first ? "" : form.between;
      line(level + 1);
      to += json_key(run, item->first, form.ascii) + form.behind_key;
      put_json(run, to, item->second, form, level + 1);
      first = false;
    }
    if (!first) {
      line(level);
    }
    to += '}';
  } else if (value.text()) {
    run.make(value.as_text().size());
    to += in_json(value.as_text(), form.ascii);
  } else if (value.none() || value.boolean()) {
    to += value.none() ? "null" : value.truth() ? "true" : "false";
  } else if (value.integer()) {
    to += std::to_string(value.as_integer());
  } else if (value.floating()) {
    const double number = value.as_double();
    to += std::isfinite(number) ? of_double(number)
          : std::isnan(number)  ? "NaN"
          : number > 0          ? "Infinity"
                                : "-Infinity";
  } else {
    refuse("tojson of {}: it is no JSON",
           value.undefined() ? "'" + value.name() + "', which is undefined" : value.type());
  }
  run.make(std::min<std::size_t>(to.size() - before, 16));
}

void put_repr(Run& run, std::string& to, const Value& value) {
  run.spend();
  const std::size_t before = to.size();
  if (const List* list = value.list()) {
    const bool tuple = list->row == Row::tuple;
    if (!tuple && list->row != Row::list) {
      refuse("a {} as a text is not done here: make a list of it (the filter 'list')", value.type());
    }
    to += tuple ? '(' : '[';
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      to += i > 0 ? ", " : "";
      put_repr(run, to, list->items[i]);
    }
    to += tuple && list->items.size() == 1 ? ",)" : tuple ? ")" : "]";
  } else if (const Dict* dict = value.dict()) {
    to += '{';
    bool first = true;
    for (const auto& [key, item] : dict->items()) {
      to += first ? "" : ", ";
      put_repr(run, to, key);
      to += ": ";
      put_repr(run, to, item);
      first = false;
    }
    to += '}';
  } else if (value.text()) {
    run.make(value.as_text().size());
    to += in_quotes(value.as_text());
  } else if (value.undefined()) {
    to += "Undefined";
  } else {
    to += to_text(run, value);
  }
  run.make(std::min<std::size_t>(to.size() - before, 16));
}

}  // namespace

std::string to_text(Run& run, const Value& value) {
  if (value.text()) {
    return value.as_text();
  }
  if (value.undefined()) {
    return {};
  }
  if (value.none() || value.boolean()) {
    return value.none() ? "None" : value.truth() ? "True" : "False";
  }
  if (value.number()) {
    return value.integer() ? std::to_string(value.as_integer()) : of_double(value.as_double());
  }
  if (value.callable() != nullptr || value.space() != nullptr) {
    refuse("a {} as a text is not done here", value.callable() != nullptr ? "function" : "namespace");
  }
  return to_repr(run, value);
}

std::string to_repr(Run& run, const Value& value) {
  std::string made;
  put_repr(run, made, value);
  return made;
}

std::string to_json(Run& run, const Value& value, const JsonForm& form) {
  std::string made;
  put_json(run, made, value, form, 0);
  return made;
}

std::string escaped(std::string_view text) {
  std::string made;
  for (const char c : text) {
    switch (c) {
      case '&': made += "&amp;"; break;
      case '<': made += "&lt;"; break;
      case '>': made += "&gt;"; break;
      case '\'': made += "&#39;"; break;
      case '"': made += "&#34;"; break;
      default: made += c;
    }
  }
  return made;
}

}  // namespace orthant::jinja
