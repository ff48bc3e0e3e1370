// What proofs, secrets and checksums of libraries are made of: the kernel's random bytes, and OpenSSL's SHA-256.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orthant {

std::string random_bytes(std::size_t count);
std::string to_hex(std::string_view bytes);
// 32 bytes. Without `key` nobody can compute them, or learn `key` from them.
std::string keyed_hash(std::string_view key, std::string_view text);
// SHA-256 in hexadecimal digits, as CMake writes it behind a library (cmake/OrthantStamp.cmake).
std::string sha256_hex(std::string_view bytes);
// In a time that does not tell where they differ.
bool same_bytes(std::string_view a, std::string_view b);

}  // namespace orthant
