// UnitsError: units of a dim that do not divide among the ranks of an axis; the setting to change depends on how many
// there are, and where.
#pragma once

#include <orthant/mesh.h>

#include <string>
#include <utility>

namespace orthant {

class UnitsError final : public LayoutError {
 public:
  UnitsError(std::string message, std::string axis, Dim dim, Region region, std::int64_t units)
      : LayoutError(std::move(message), std::move(axis), dim), region_(region), units_(units) {}
  Region region() const { return region_; }
  std::int64_t units() const { return units_; }

 private:
  Region region_;
  std::int64_t units_;
};

}  // namespace orthant
