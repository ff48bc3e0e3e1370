// JsonText: whether bytes, one after another, are the beginning of a JSON object (RFC 8259), and when it is whole.
//
// Narrower than the RFC where a model could go on for ever or say what readers refuse: at most 64 blanks in a row, 60
// levels, 18 digits and exponents of 2, UTF-8 alone, and no \u escapes of surrogates.
#pragma once

#include <cstdint>
#include <string_view>

namespace orthant {

// What a byte of JSON is part of. A scalar: a string with its quotes, a number, or one of the three names.
enum class JsonPart : std::uint8_t {
  blank,
  open_object,
  close_object,
  open_array,
  close_array,
  comma,
  colon,
  key,
  scalar
};

// Small: it is copied for each token that is tried. Thread safety: none.
class JsonText {
 public:
  // False: no JSON goes on like this; nothing may be added any more.
  bool add(char byte);
  bool add(std::string_view bytes);
  // What the last byte is part of. REQUIRES: it was added.
  JsonPart part() const { return part_; }
  static constexpr int most_levels = 60;
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
  JsonPart part_ = JsonPart::blank;
  bool key_ = false;                 // the string is one
  std::uint8_t left_ = 0;            // bytes of a character, digits of an escape or number
  std::uint8_t low_ = 0, high_ = 0;  // the next byte of a character
  std::uint8_t blanks_ = 0, depth_ = 0;
  std::uint64_t objects_ = 0;  // by level: 1 where it is one, else an array
  const char* literal_ = "";   // what is left of it
};

}  // namespace orthant
