// SHA-256 (FIPS 180-4), in hexadecimal digits: CMake writes the same behind a library (cmake/OrthantStamp.cmake).
#pragma once

#include <span>
#include <string>

namespace orthant {

std::string sha256(std::span<const char> bytes);

}  // namespace orthant
