// Codes of few bits for runs of gradients, with what they lose (error feedback).
//
// Sources: signs with one scale: Seide et al., "1-bit stochastic gradient descent" (Interspeech 2014), and the scale of
// Tang et al., "1-bit Adam" (ICML 2021). Blocks of int8: Wang et al., "ZeRO++" (2023), section 3.3.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace orthant::compress {

enum class Method {
  signs,  // a bit for each element, and the mean of their sizes
  int8    // eight bits for each element, and a scale for each block: its largest element / 127
};

struct Code {
  Method method = Method::signs;
  std::int64_t block = 256;  // of int8, in elements
  // Of `elements` elements, at least 1.
  std::int64_t bytes(std::int64_t elements) const;
};

// Codes x + left into `to`, and leaves in `left` what is lost. Zeros are coded as zeros. Where an element is not finite
// the code is of NaN, and `left` stays as it is. REQUIRES: x and left have equal sizes, `to` has Code::bytes of them.
void encode(const Code& code, std::span<std::uint8_t> to, std::span<const float> x, std::span<float> left);

// to += what `from` is the code of.
void add_decoded(const Code& code, std::span<float> to, std::span<const std::uint8_t> from);

}  // namespace orthant::compress
