// The arithmetic of StateCode and of rounding to bf16 by chance, for the host and for kernels: integers only, the same
// bits in both. `random` is a number of 32 bits (random_bits): up it goes where that is below the share of the way that
// the value has gone from one neighbour to the next.
#pragma once

#include <orthant/state_code.h>

#include "core/base/storage_types.h"

namespace orthant {

// A code is a sign, if it has one, above an exponent and three bits of mantissa; the exponent 0 is that of the numbers
// below the smallest normal one. `top`: the largest exponent.
struct WithSign {
  static constexpr int top = 15;
  static constexpr bool has_sign = true;
};
struct Positive {
  static constexpr int top = 31;
  static constexpr bool has_sign = false;
};

constexpr std::uint32_t no_exponent = 255;  // of a block with something that is not finite

// Calls fn with a value of the code's type. REQUIRES: how is not none.
template <class F>
void with_state_code(StateCode how, F&& fn) {
  if (how == StateCode::with_sign) {
    fn(WithSign{});
  } else {
    fn(Positive{});
  }
}

// The byte of a block: the exponent, as in an f32, of the binade in which its largest element lies, or of the next one
// if that element is nearer to it. `size`: the bits of the largest |x|.
ORTHANT_HOST_DEVICE inline std::uint32_t block_exponent(std::uint32_t size) {
  const std::uint32_t field = size >> 23, next = (size & 0x7FFFFFu) > 0x700000u ? 1 : 0;
  return field == 255 ? no_exponent : field + next > 254 ? 254 : field + next;
}

// The exponent of the smallest number of a block, 2^unit.
template <class Code>
ORTHANT_HOST_DEVICE inline int code_unit(std::uint32_t exponent) {
  const int unit = static_cast<int>(exponent) - 127 - Code::top - 2;
  return unit < -149 ? -149 : unit;
}

template <class Code>
ORTHANT_HOST_DEVICE inline std::uint8_t encoded(float x, std::uint32_t exponent, std::uint32_t random) {
  const std::uint32_t u = bits_of_float(x), size = u & 0x7FFFFFFFu, field = size >> 23;
  const bool negative = u >> 31 != 0;
  // |x| = significand * 2^(place - 150), and `shift` is how far its last bit lies below that of the smallest code.
  const std::uint32_t significand = field != 0 ? (size & 0x7FFFFFu) | 0x800000u : size;
  const int place = field != 0 ? static_cast<int>(field) : 1;
  const int shift = code_unit<Code>(exponent) + 150 - place;
  const int leading = static_cast<int>(bits_of_float(static_cast<float>(static_cast<int>(significand))) >> 23) - 127;
  const int binade = leading - 3 - shift > 0 ? leading - 3 - shift : 0;
  const int wanted = leading - 3 > shift ? leading - 3 : shift;
  const int dropped = wanted < 0 ? 0 : wanted > 63 ? 63 : wanted;
  const int seen = dropped > 31 ? 31 : dropped;
  const std::uint32_t kept = significand >> seen, rest = significand - (kept << seen);
  // rest / 2^dropped of 2^32.
  const std::uint32_t share = dropped > 31 ? rest >> (dropped - 32 > 0 ? dropped - 32 : 0) : rest << (31 - seen) << 1;
  const std::uint32_t up = random < share ? 1 : 0;
  constexpr std::uint32_t largest = static_cast<std::uint32_t>(Code::top) * 8 + 7;
  std::uint32_t code = static_cast<std::uint32_t>(binade) * 8 + kept + up;
  code = code > largest ? largest : code;
  if constexpr (Code::has_sign) {
    code |= negative ? 0x80u : 0u;
  } else {
    code = negative || size == 0 ? 0 : code == 0 ? 1 : code;
  }
  return static_cast<std::uint8_t>(exponent == no_exponent ? 0 : code);
}

// Exact.
template <class Code>
ORTHANT_HOST_DEVICE inline float decoded(std::uint8_t code, std::uint32_t exponent) {
  const std::uint32_t bits = Code::has_sign ? code & 0x7Fu : code, field = bits >> 3, mantissa = bits & 7u;
  const int power = code_unit<Code>(exponent) + (field == 0 ? 0 : static_cast<int>(field) - 1);
  const std::uint32_t unit =
      power >= -126 ? static_cast<std::uint32_t>(power + 127) << 23 : 1u << static_cast<std::uint32_t>(power + 149);
  const float size = static_cast<float>(field == 0 ? mantissa : mantissa + 8) * float_of_bits(unit);
  const std::uint32_t sign = Code::has_sign ? std::uint32_t{code} >> 7 << 31 : 0u;
  return float_of_bits(exponent == no_exponent ? 0x7FC00000u : bits_of_float(size) | sign);
}

// The bits of the bf16 number.
ORTHANT_HOST_DEVICE inline std::uint16_t rounded_to_bf16(float x, std::uint32_t random) {
  const std::uint32_t u = bits_of_float(x), size = u & 0x7FFFFFFFu;
  const std::uint32_t odd = (u >> 16) | (size > 0x7F800000u ? 0x40u : 0u);  // infinity, NaN
  const std::uint32_t up = random >> 16 < (u & 0xFFFFu) ? 1 : 0;
  return static_cast<std::uint16_t>(size >= 0x7F800000u ? odd : (u >> 16) + up);
}

}  // namespace orthant
