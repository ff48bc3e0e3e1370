// The alphabet of byte-level models: a printable character for each byte (GPT-2, Radford et al. 2019).
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace orthant {

char32_t letter_of_byte(unsigned char byte);
// The bytes that the letters of `text` stand for; nothing where one of its characters is no letter.
std::optional<std::string> bytes_of_letters(std::string_view text);

}  // namespace orthant
