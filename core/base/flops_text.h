// A number of floating-point operations for people.
#pragma once

#include <fmt/format.h>

#include <string>

namespace orthant {

// "12 FLOP", "1.5 kFLOP", "318 MFLOP".
inline std::string flops_text(double flops) {
  const char* unit = "FLOP";
  for (const char* larger : {"kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"}) {
    if (flops < 1000) {
      break;
    }
    flops /= 1000;
    unit = larger;
  }
  return fmt::format("{:.3g} {}", flops, unit);
}

}  // namespace orthant
