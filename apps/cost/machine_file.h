// Machine files and the file of factors (configs/machines/), read and written.
//
// Thread safety: pure functions on files.
#pragma once

#include <map>
#include <string>

#include "apps/cost/machine.h"

namespace orthant::cost {

// What a fit found: factors of each generation, and what all machines share.
struct FactorFile {
  Practice practice;
  std::map<std::string, Factors> generations;
  std::map<std::string, double> spreads;  // as Practice::spread, of each kind of published rows
};

// A machine with the factors of its own [factors] table, or else those of its generation in `factors`.
// Errors: ConfigError naming file, line and key, and what to write: unknown keys and tables, a number that is not above
// 0, no link, links that are not listed from the nearest on, a generation without factors.
Machine load_machine(const std::string& path, const FactorFile& factors);
// The same with factors.toml of the same folder.
Machine load_machine(const std::string& path);

// Errors: as load_machine().
FactorFile load_factors(const std::string& path);

// The text of a file that load_factors() reads. `heading`: lines of comment.
std::string factors_toml(const FactorFile& factors, const std::string& heading);

}  // namespace orthant::cost
