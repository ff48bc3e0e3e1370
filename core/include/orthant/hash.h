// Hash64, hash32: a small hash that is the same on every machine and in every build. For the names of groups and of
// random numbers' sites. Files are checked by XXH3 and secrets by SHA-256, not by this.
//
// Source: FNV-1a (Fowler, Noll, Vo). Thread safety: values; nothing is shared.
#pragma once

#include <cstdint>
#include <string_view>

#include <orthant/abi/communicators.h>

namespace orthant {

class Hash64 {
 public:
  constexpr Hash64& add(std::uint64_t value) {
    value_ = (value_ ^ value) * 0x100000001b3u;
    return *this;
  }
  constexpr Hash64& add(std::string_view bytes) {
    for (const char c : bytes) {
      add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    }
    return *this;
  }
  constexpr std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

constexpr std::uint32_t hash32(std::string_view bytes) {
  std::uint32_t hash = 2166136261u;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return hash;
}

}  // namespace orthant
