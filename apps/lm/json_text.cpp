#include "apps/lm/json_text.h"

#include <algorithm>

namespace orthant {
namespace {

constexpr std::uint8_t most_blanks = 64, most_digits = 18, most_of_exponent = 2;

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

bool JsonText::add(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [&](char c) { return add(c); });
}

bool JsonText::add(char c) {
  if (state_ >= State::minus) {
    return in_number(c);
  }
  if (state_ >= State::string) {
    return in_string(c);
  }
  if (is_blank(c)) {
    part_ = JsonPart::blank;
    return ++blanks_ <= most_blanks;
  }
  blanks_ = 0;
  switch (state_) {
    case State::start: return c == '{' && open(true);
    case State::key_or_end:
      if (c == '}') {
        return close(true);
      }
      [[fallthrough]];
    case State::key:
      key_ = true;
      state_ = State::string;
      part_ = JsonPart::key;
      return c == '"';
    case State::colon:
      state_ = State::value;
      part_ = JsonPart::colon;
      return c == ':';
    case State::value_or_end:
      if (c == ']') {
        return close(false);
      }
      [[fallthrough]];
    case State::value: return begin_value(c);
    case State::behind_value:
      if (c == ',') {
        state_ = (objects_ >> depth_ & 1) == 1 ? State::key : State::value;
        part_ = JsonPart::comma;
        return true;
      }
      return (c == '}' && close(true)) || (c == ']' && close(false));
    default: return false;  // behind the end
  }
}

bool JsonText::open(bool object) {
  ++depth_;
  objects_ = (objects_ & ~(std::uint64_t{1} << depth_)) | (std::uint64_t{object ? 1U : 0U} << depth_);
  state_ = object ? State::key_or_end : State::value_or_end;
  part_ = object ? JsonPart::open_object : JsonPart::open_array;
  return depth_ <= most_levels;
}

bool JsonText::close(bool object) {
  const bool fits = (objects_ >> depth_ & 1) == (object ? 1U : 0U);
  --depth_;
  state_ = depth_ == 0 ? State::end : State::behind_value;
  part_ = object ? JsonPart::close_object : JsonPart::close_array;
  return fits;
}

bool JsonText::begin_value(char c) {
  part_ = JsonPart::scalar;
  switch (c) {
    case '{': return open(true);
    case '[': return open(false);
    case '"':
      key_ = false;
      state_ = State::string;
      return true;
    case 't': literal_ = "rue"; break;
    case 'f': literal_ = "alse"; break;
    case 'n': literal_ = "ull"; break;
    case '-': state_ = State::minus; return true;
    case '0': state_ = State::zero; return true;
    default:
      state_ = State::digits;
      left_ = most_digits - 1;
      return is_digit(c);
  }
  state_ = State::literal;
  return true;
}

bool JsonText::in_string(char c) {
  const auto byte = static_cast<unsigned char>(c);
  switch (state_) {
    case State::utf8:
      if (byte < low_ || byte > high_) {
        return false;
      }
      low_ = 0x80;
      high_ = 0xBF;
      state_ = --left_ == 0 ? State::string : State::utf8;
      return true;
    case State::escape:
      left_ = 4;
      state_ = c == 'u' ? State::hex : State::string;
      return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
    case State::hex:
      if (!is_hex(c) || (left_ == 3 && low_ == 1 && c > '7')) {
        return false;
      }
      low_ = left_ == 4 && (c == 'd' || c == 'D') ? 1 : 0;
      state_ = --left_ == 0 ? State::string : State::hex;
      return true;
    case State::literal:
      if (c != *literal_) {
        return false;
      }
      ++literal_;
      state_ = *literal_ == '\0' ? State::behind_value : State::literal;
      return true;
    default: break;
  }
  if (c == '"') {
    state_ = key_ ? State::colon : State::behind_value;
    return true;
  }
  if (c == '\\') {
    state_ = State::escape;
    return true;
  }
  return byte < 0x80 ? byte >= 0x20 : begin_utf8(byte);
}

// RFC 3629: no overlong form, no surrogate, nothing above U+10FFFF.
bool JsonText::begin_utf8(unsigned char c) {
  left_ = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
  low_ = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
  high_ = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
  state_ = State::utf8;
  return c >= 0xC2 && c <= 0xF4;
}

bool JsonText::in_number(char c) {
  const bool digit = is_digit(c);
  const auto go = [&](State next) {
    state_ = next;
    left_ = next == State::exponent_digits ? most_of_exponent - 1
            : next == State::point         ? most_digits
                                           : most_digits - 1;
    return true;
  };
  switch (state_) {
    case State::minus: return c == '0' ? go(State::zero) : digit && go(State::digits);
    case State::point: return digit && go(State::fraction);
    case State::exponent: return c == '+' || c == '-' ? go(State::exponent_sign) : digit && go(State::exponent_digits);
    case State::exponent_sign: return digit && go(State::exponent_digits);
    default: break;
  }
  if (digit && state_ != State::zero) {
    return left_-- > 0;
  }
  if (c == '.' && (state_ == State::zero || state_ == State::digits)) {
    return go(State::point);
  }
  if ((c == 'e' || c == 'E') && state_ != State::exponent_digits) {
    return go(State::exponent);
  }
  state_ = State::behind_value;
  return !digit && add(c);
}

}  // namespace orthant
