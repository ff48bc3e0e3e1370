// How many rows a product is given.
#pragma once

#include <cstdint>

namespace orthant {

// A size that few others are rounded up to: libraries prepare a product once for each number of rows.
inline std::int64_t rounded_rows(std::int64_t rows) {
  if (rows <= 4) {
    return rows;
  }
  std::int64_t step = 4;
  while (step * 8 < rows) {
    step *= 2;
  }
  return (rows + step - 1) / step * step;
}

}  // namespace orthant
