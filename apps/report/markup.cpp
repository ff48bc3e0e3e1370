#include "apps/report/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <vector>

namespace orthant::report {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

// The bytes of the UTF-8 character at the start of `text`; 0 where there is none that XML may hold.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = at(0);
  if (first < 0x80) {
    return (first >= 0x20 && first != 0x7F) || first == '\n' || first == '\t' || first == '\r' ? 1 : 0;
  }
  const std::size_t count = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < count) {
    return 0;
  }
  std::uint32_t code = first & (0xFFu >> (count + 1));
  for (std::size_t i = 1; i < count; ++i) {
    if ((at(i) & 0xC0) != 0x80) {
      return 0;
    }
    code = code << 6 | (at(i) & 0x3F);
  }
  const std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= least[count] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF) &&
                     (code & 0xFFFE) != 0xFFFE && (code < 0x80 || code > 0x9F);
  return valid ? count : 0;
}

// Its characters, each as valid UTF-8.
std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> all;
  while (!text.empty()) {
    const std::size_t count = character_bytes(text);
    all.push_back(count == 0 ? replacement : text.substr(0, count));
    text.remove_prefix(std::max<std::size_t>(count, 1));
  }
  return all;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const std::string_view character : characters(text)) {
    switch (character[0]) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += character;
    }
  }
  return result;
}

std::string csv_field(std::string_view text) {
  std::string field;
  const bool number = text.size() > 1 && text[0] == '-' && (std::isdigit(static_cast<unsigned char>(text[1])) != 0);
  if (!text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos && !number) {
    field = "'";
  }
  field += text;
  if (field.find_first_of(",\"\r\n") == std::string::npos) {
    return field;
  }
  std::string quoted = "\"";
  for (const char c : field) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + '"';
}

std::string percent_encoded(std::string_view text) {
  std::string result;
  std::string valid;
  for (const std::string_view character : characters(text)) {
    valid += character;
  }
  for (const char c : valid) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && std::isalnum(byte) != 0) || std::string_view("-._~").find(c) != std::string_view::npos) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", byte);
    }
  }
  return result;
}

std::string shell_word(std::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-._~/=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + '\'';
}

std::size_t length_of(std::string_view text) {
  return characters(text).size();
}

std::string shortened(std::string_view text, std::size_t most) {
  const std::vector<std::string_view> all = characters(text);
  if (all.size() <= most) {
    return std::string(text);
  }
  std::string result;
  const std::size_t head = most / 2, tail = most - head - 1;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i < head || i >= all.size() - tail) {
      result += all[i];
    } else if (i == head) {
      result += "\xE2\x80\xA6";  // an ellipsis
    }
  }
  return result;
}

}  // namespace orthant::report
