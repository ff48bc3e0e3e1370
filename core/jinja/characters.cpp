#include "core/jinja/characters.h"

#include <algorithm>

#include "core/jinja/template_error.h"
#include "core/tokenizer/utf8.h"

namespace orthant::jinja {
namespace {

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), begins_character);
}

std::size_t byte_of(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (begins_character(text[at]) && index-- == 0) {
      break;
    }
  }
  return at;
}

bool is_space(char32_t code) {
  return is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

std::string_view stripped(std::string_view text, bool left, bool right, const std::string* chars) {
  const auto goes = [&](std::string_view character) {
    return chars == nullptr ? is_space(utf8_code(character)) : chars->find(character) != std::string::npos;
  };
  while (left && !text.empty()) {
    const std::size_t length = utf8_length(text);
    if (!goes(text.substr(0, length))) {
      break;
    }
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    const std::size_t at = last_character(text);
    if (!goes(text.substr(at))) {
      break;
    }
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::string in_case(std::string_view text, Case wanted) {
  std::string made(text);
  bool within = false;  // a word, for `title`; the text, for `capital`
  for (char& c : made) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      refuse("upper, lower, title or capitalize of letters beyond ASCII is not done here");
    }
    const bool letter = upper(c) != lower(c);
    const bool raised = wanted == Case::upper || (wanted != Case::lower && !within);
    c = raised ? upper(c) : lower(c);
    within = wanted == Case::capital || letter;
  }
  return made;
}

}  // namespace orthant::jinja
