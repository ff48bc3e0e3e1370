#include "core/config/value_text.h"

#include <fmt/format.h>
#include <orthant/table.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

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

std::optional<std::int64_t> parse_bytes(const std::string& text) {
  static constexpr std::array<std::pair<const char*, double>, 10> units = {{{"", 1},
                                                                            {"b", 1},
                                                                            {"kb", 1e3},
                                                                            {"mb", 1e6},
                                                                            {"gb", 1e9},
                                                                            {"tb", 1e12},
                                                                            {"kib", 0x1p10},
                                                                            {"mib", 0x1p20},
                                                                            {"gib", 0x1p30},
                                                                            {"tib", 0x1p40}}};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  std::string unit(stop, end);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? 0 : unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto known = std::find_if(units.begin(), units.end(), [&](const auto& u) { return unit == u.first; });
  if (error != std::errc() || known == units.end()) {
    return std::nullopt;
  }
  const double bytes = std::floor(number * known->second);
  if (!(bytes >= 1) || bytes > 0x1p60) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace orthant
