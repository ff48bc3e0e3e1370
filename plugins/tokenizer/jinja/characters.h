// Texts as Python has them: rows of code points, kept as UTF-8.
//
// REQUIRES: UTF-8. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace orthant::jinja {

std::int64_t characters(std::string_view text);
// Where character `index` begins, in bytes; the end for one behind the last.
std::size_t byte_of(std::string_view text, std::int64_t index);

bool is_space(char32_t code);  // as str.isspace
// What remains of `text` without the characters at its ends that are in `chars`; null: white space.
std::string_view stripped(std::string_view text, bool left, bool right, const std::string* chars = nullptr);

// As str.isalpha, isdigit and isprintable have it, for one character. Errors: is_digit: TemplateError for numbers that
// are no decimal digits.
bool is_letter(char32_t code);
bool is_digit(char32_t code);
bool is_printable(char32_t code);

enum class Case { upper, lower, title, capital };
// Errors: TemplateError for a letter that becomes several (the sharp s) or another one by its place (the Greek sigma).
std::string in_case(std::string_view text, Case wanted);

}  // namespace orthant::jinja
