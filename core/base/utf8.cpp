#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace orthant {
namespace {

bool continues(unsigned char byte) {
  return (byte & 0xc0) == 0x80;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) {
    return 0;
  }
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xc2 && lead <= 0xdf) {
    return text.size() >= 2 && continues(byte(1)) ? 2 : 0;
  }
  if (lead >= 0xe0 && lead <= 0xef) {
    if (text.size() < 3 || !continues(byte(1)) || !continues(byte(2))) {
      return 0;
    }
    const bool overlong = lead == 0xe0 && byte(1) < 0xa0, surrogate = lead == 0xed && byte(1) > 0x9f;
    return overlong || surrogate ? 0 : 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if (text.size() < 4 || !continues(byte(1)) || !continues(byte(2)) || !continues(byte(3))) {
      return 0;
    }
    const bool overlong = lead == 0xf0 && byte(1) < 0x90, beyond = lead == 0xf4 && byte(1) > 0x8f;
    return overlong || beyond ? 0 : 4;
  }
  return 0;
}

std::size_t valid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;  // most text is ASCII: eight bytes at a time
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) {
      break;
    }
    at += length;
  }
  return at;
}

char32_t utf8_code(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    return lead;
  }
  if (lead < 0xe0) {
    return (lead & 0x1f) << 6 | (byte(1) & 0x3f);
  }
  if (lead < 0xf0) {
    return (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  }
  return (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && continues(static_cast<unsigned char>(text[at]))) {
    --at;
  }
  return at;
}

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
         code == 0x3000;
}

}  // namespace orthant
