#include "core/config/value_text.h"

#include <fmt/format.h>

namespace orthant {
namespace {

std::string quote_toml(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += c == '\n' ? "\\n" : c == '\t' ? "\\t" : fmt::format("\\u{:04X}", byte);
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string element_text(bool value) {
  return value ? "true" : "false";
}
std::string element_text(std::int64_t value) {
  return fmt::format("{}", value);
}
std::string element_text(const std::string& value) {
  return quote_toml(value);
}
std::string element_text(double value) {
  std::string text = fmt::format("{}", value);  // the shortest text that reads back to the same value
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}
template <class T>
std::string element_text(const std::vector<T>& list) {
  std::string text = "[";
  for (std::size_t i = 0; i < list.size(); ++i) {
    text += (i > 0 ? ", " : "") + element_text(list[i]);
  }
  return text + "]";
}

}  // namespace

std::string type_name(const Value& value) {
  static constexpr const char* names[] = {"boolean",          "integer",         "number",         "string",
                                          "list of integers", "list of numbers", "list of strings"};
  return names[value.index()];
}

std::string toml_text(const Value& value) {
  return std::visit([](const auto& held) { return element_text(held); }, value);
}

}  // namespace orthant
