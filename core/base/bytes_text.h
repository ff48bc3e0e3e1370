// A number of bytes for people.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace orthant {

// "12 B", "1.50 KiB", "20.00 GiB".
inline std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes) / 1024;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB", "TiB"}) {
    if (value < 1024) {
      break;
    }
    value /= 1024;
    unit = larger;
  }
  return fmt::format("{:.2f} {}", value, unit);
}

}  // namespace orthant
