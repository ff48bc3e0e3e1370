#include "plugins/tokenizer/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>

#include "core/base/utf8.h"
#include "plugins/tokenizer/jinja/template_error.h"

namespace orthant::jinja {
namespace {

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

// Letters whose other case is no single letter, or depends on where they stand (SpecialCasing.txt of Unicode).
bool special_case(char32_t code) {
  constexpr std::u32string_view single = U"\u00DF\u0130\u0149\u01F0\u0390\u03A3\u03B0\u0587\u1E9E";
  return single.find(code) != std::u32string_view::npos || (code >= 0x1E96 && code <= 0x1E9A) ||
         (code >= 0x1F50 && code <= 0x1FFC) || (code >= 0xFB00 && code <= 0xFB17);
}

char32_t upper(char32_t code) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

char32_t lower(char32_t code) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

char32_t title(char32_t code) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
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

bool is_letter(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  if (category == UTF8PROC_CATEGORY_NO || category == UTF8PROC_CATEGORY_NL) {
    refuse("whether a number that is no decimal digit (U+{:04X}) is one is not done here",
           static_cast<std::uint32_t>(code));
  }
  return category == UTF8PROC_CATEGORY_ND;
}

bool is_printable(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

std::string in_case(std::string_view text, Case wanted) {
  std::string made;
  bool within = false;  // a word, for `title`; the text, for `capital`
  while (!text.empty()) {
    const char32_t code = utf8_code(text);
    text.remove_prefix(utf8_length(text));
    if (special_case(code)) {
      refuse("another case of the letter U+{:04X} is not done here", static_cast<std::uint32_t>(code));
    }
    const bool letter = upper(code) != code || lower(code) != code;
    const bool first = (wanted == Case::title || wanted == Case::capital) && !within;
    append_utf8(made, wanted == Case::upper ? upper(code) : first ? title(code) : lower(code));
    within = wanted == Case::capital || letter;
  }
  return made;
}

}  // namespace orthant::jinja
