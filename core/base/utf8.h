// UTF-8 as RFC 3629 defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orthant {

// Bytes of the character that `text` begins with; 0: it begins with none.
std::size_t utf8_length(std::string_view text);

// The longest beginning of `text` that is UTF-8, in bytes.
std::size_t valid_utf8(std::string_view text);

// The code point of the character that `text` begins with. REQUIRES: there is one (utf8_length is not 0).
char32_t utf8_code(std::string_view text);

void append_utf8(std::string& text, char32_t code);

// Where the last character of `text` begins. REQUIRES: UTF-8, not empty.
std::size_t last_character(std::string_view text);

// The Unicode property White_Space.
bool is_white_space(char32_t code);

}  // namespace orthant
