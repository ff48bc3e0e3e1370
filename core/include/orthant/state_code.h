// StateCode: optimizer states in 8 bits (optimizer.state_dtype = "8bit").
//
// A block is 32 elements that follow each other in a row of the *global* parameter, from a column on that is a multiple
// of 32: which elements have a scale in common does not depend on the layout. Beside its 32 codes a block has one byte,
// the exponent of the binade in which its largest element lies. A code is a floating-point number of 8 bits below the
// top of that binade. All scales are powers of two, so a block that is decoded and encoded again keeps its numbers.
//
// Encoding rounds by chance, so that the stored number is right on average: a moment that changes by less than half of
// a step of its code would otherwise stand still.
//
// Sources: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022); Peng et al., "FP8-LM" (2023); the
// byte of a block is the scale of Open Compute Project, "Microscaling Formats (MX)", version 1.0 (2023).
#pragma once

#include <cstdint>

#include <orthant/abi/operations.h>

namespace orthant {

enum class StateCode : std::uint8_t {
  none,       // f32: it is stored as it is
  with_sign,  // a sign, 4 bits of exponent, 3 of mantissa: from the block's largest element down to its 2^-18th
  positive    // 5 bits of exponent, 3 of mantissa, down to the 2^-34th. What is above zero stays above zero
};

inline constexpr std::int64_t state_block = 32;

}  // namespace orthant
