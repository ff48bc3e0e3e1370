#include "plugins/tokenizer/byte_alphabet.h"

#include <array>

#include "core/base/utf8.h"

namespace orthant {
namespace {

// Bytes that Latin-1 prints stand for themselves; the others, in order, have the letters from U+0100 on.
constexpr bool prints(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Letters {
  std::array<char32_t, 256> letter{};
  std::array<int, 512> byte{};  // -1: no letter
};

constexpr Letters make_letters() {
  Letters letters;
  letters.byte.fill(-1);
  char32_t other = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t letter = prints(byte) ? static_cast<char32_t>(byte) : other++;
    letters.letter[byte] = letter;
    letters.byte[letter] = static_cast<int>(byte);
  }
  return letters;
}

constexpr Letters letters = make_letters();

}  // namespace

char32_t letter_of_byte(unsigned char byte) {
  return letters.letter[byte];
}

std::optional<std::string> bytes_of_letters(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {  // what another decoder has made of tokens need not be UTF-8
      return std::nullopt;
    }
    const char32_t code = utf8_code(text);
    if (code >= letters.byte.size() || letters.byte[code] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(letters.byte[code]);
    text.remove_prefix(length);
  }
  return bytes;
}

}  // namespace orthant
