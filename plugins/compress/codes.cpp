#include "codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace orthant::compress {
namespace {

constexpr std::int64_t scale_bytes = sizeof(float);

void put(std::uint8_t* to, float scale) {
  std::memcpy(to, &scale, sizeof scale);
}
float scale_at(const std::uint8_t* from) {
  float scale = 0;
  std::memcpy(&scale, from, sizeof scale);
  return scale;
}

bool all_finite(std::span<const float> x, std::span<const float> left) {
  bool finite = true;
  for (std::size_t i = 0; i < x.size(); ++i) {
    finite = finite && std::isfinite(x[i] + left[i]);
  }
  return finite;
}

// A scale, then a bit for each element: 1 where it is not below zero.
void encode_signs(std::uint8_t* to, std::span<const float> x, std::span<float> left) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    left[i] += x[i];
    sum += std::abs(static_cast<double>(left[i]));
  }
  const auto scale = static_cast<float>(sum / static_cast<double>(x.size()));
  put(to, scale);
  std::fill_n(to + scale_bytes, (x.size() + 7) / 8, std::uint8_t{0});
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool positive = left[i] >= 0;
    to[scale_bytes + static_cast<std::int64_t>(i / 8)] |= static_cast<std::uint8_t>(positive ? 1u << (i % 8) : 0u);
    left[i] -= positive ? scale : -scale;
  }
}

void encode_block(std::uint8_t* to, std::span<const float> x, std::span<float> left) {
  float largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    left[i] += x[i];
    largest = std::max(largest, std::abs(left[i]));
  }
  const float scale = largest / 127;
  put(to, scale);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float steps = scale > 0 ? std::clamp(std::nearbyint(left[i] / scale), -127.0f, 127.0f) : 0.0f;
    to[scale_bytes + static_cast<std::int64_t>(i)] = static_cast<std::uint8_t>(static_cast<std::int8_t>(steps));
    left[i] -= steps * scale;
  }
}

// The pieces of a run that have a scale of their own: one of signs, the blocks of int8.
template <class Piece>
void for_each_piece(const Code& code, std::size_t elements, Piece piece) {
  const std::size_t most = code.method == Method::signs ? elements : static_cast<std::size_t>(code.block);
  std::int64_t at = 0;
  for (std::size_t begin = 0; begin < elements; begin += most) {
    const std::size_t count = std::min(most, elements - begin);
    piece(begin, count, at);
    at += code.bytes(static_cast<std::int64_t>(count));
  }
}

}  // namespace

std::int64_t Code::bytes(std::int64_t elements) const {
  return method == Method::signs ? scale_bytes + (elements + 7) / 8
                                 : scale_bytes * ((elements + block - 1) / block) + elements;
}

void encode(const Code& code, std::span<std::uint8_t> to, std::span<const float> x, std::span<float> left) {
  const bool finite = all_finite(x, left);
  for_each_piece(code, x.size(), [&](std::size_t begin, std::size_t count, std::int64_t at) {
    if (!finite) {
      put(to.data() + at, std::numeric_limits<float>::quiet_NaN());
    } else if (code.method == Method::signs) {
      encode_signs(to.data() + at, x.subspan(begin, count), left.subspan(begin, count));
    } else {
      encode_block(to.data() + at, x.subspan(begin, count), left.subspan(begin, count));
    }
  });
}

void add_decoded(const Code& code, std::span<float> to, std::span<const std::uint8_t> from) {
  for_each_piece(code, to.size(), [&](std::size_t begin, std::size_t count, std::int64_t at) {
    const float scale = scale_at(from.data() + at);
    const std::uint8_t* const coded = from.data() + at + scale_bytes;
    for (std::size_t i = 0; i < count; ++i) {
      const float value = code.method == Method::signs ? ((coded[i / 8] >> (i % 8) & 1) != 0 ? scale : -scale)
                          : std::isnan(scale)          ? scale
                                                       : static_cast<float>(static_cast<std::int8_t>(coded[i])) * scale;
      to[begin + i] += value;
    }
  });
}

}  // namespace orthant::compress
