// JsonText: whether bytes, one after another, are the beginning of a JSON object (RFC 8259), and when it is whole.
//
// Narrower than the RFC where a model could go on for ever or say what readers refuse: at most 64 blanks in a row, 60
// levels, 18 digits and exponents of 2, UTF-8 alone, and no \u escapes of surrogates.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

// Small: it is copied for each token that is tried. Thread safety: none.
class JsonText {
 public:
  // False: no JSON goes on like this; nothing may be added any more.
  bool add(char byte);
  bool add(std::string_view bytes);
  bool whole() const { return state_ == State::end; }  // blanks may follow

 private:
  enum class State : std::uint8_t {
    start,
    key_or_end,
    key,
    colon,
    value,
    value_or_end,
    behind_value,
    end,
    string,
    utf8,
    escape,
    hex,
    literal,
    minus,
    zero,
    digits,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
  };
  bool begin_value(char c);
  bool open(bool object);
  bool close(bool object);
  bool in_string(char c);
  bool in_number(char c);
  bool begin_utf8(unsigned char c);

  State state_ = State::start;
  bool key_ = false;                 // the string is one
  std::uint8_t left_ = 0;            // bytes of a character, digits of an escape or number
  std::uint8_t low_ = 0, high_ = 0;  // the next byte of a character
  std::uint8_t blanks_ = 0, depth_ = 0;
  std::uint64_t objects_ = 0;  // by level: 1 where it is one, else an array
  const char* literal_ = "";   // what is left of it
};

// What each token adds to a text that goes on. Thread safety: constant.
class JsonTokens {
 public:
  JsonTokens(const Tokenizer& tokenizer, std::int64_t vocabulary);
  const std::string& of(std::int32_t token) const { return bytes_[static_cast<std::size_t>(token)]; }
  // -infinity for tokens that cannot follow: of no bytes, in `ends`, or that lead out of JSON. Errors: Error where none
  // is left.
  void allow(const JsonText& text, std::span<float> logits, std::span<const std::int32_t> ends) const;

 private:
  std::vector<std::string> bytes_;  // by id; empty: of no token
};

}  // namespace orthant
