// A sum over a row whose error does not grow with the row: parts are added in fp32, which vectorises, and the parts in
// fp64. So a wide row is as exact where the compiler uses no vector instructions, as under the sanitizers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace orthant {

// part(begin, end): the sum of some of n elements, 256 at most, in fp32.
template <class Part>
float sum_by_parts(std::int64_t n, Part&& part) {
  constexpr std::int64_t length = 256;
  double whole = 0;
  for (std::int64_t begin = 0; begin < n; begin += length) {
    whole += part(begin, std::min(begin + length, n));
  }
  return static_cast<float>(whole);
}

}  // namespace orthant
