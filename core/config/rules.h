// What checks that involve several keys report with.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace orthant {

class Rules {
 public:
  Rules(const Config& config, const std::set<std::string>& broken, Diagnostics& diagnostics)
      : config_(config), broken_(broken), diagnostics_(diagnostics) {}

  // Whether none of the keys was refused already.
  bool sound(const std::vector<std::string>& keys) const {
    return std::none_of(keys.begin(), keys.end(), [&](const auto& key) { return broken_.count(key) > 0; });
  }

  // Reports at the first of the keys that somebody wrote (name the one to change first), else beside the first.
  void expect(bool ok, const std::vector<std::string>& keys, const std::string& message, const std::string& advice) {
    if (ok || !sound(keys)) {
      return;
    }
    std::string origin = "default";
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      const std::string& written = config_.origin(*key);
      origin = written == "default" ? origin : written;
    }
    diagnostics_.add(origin == "default" ? config_.nearest_origin(keys.front()) : origin, message, advice);
  }

  // Reports at one element of a list.
  void refuse(const std::string& key, std::size_t element, const std::string& message, const std::string& advice) {
    const auto elements = config_.element_origins.find(key);
    const bool known = elements != config_.element_origins.end() && element < elements->second.size();
    diagnostics_.add(known ? elements->second[element] : config_.origin(key), message, advice);
  }

 private:
  const Config& config_;
  const std::set<std::string>& broken_;
  Diagnostics& diagnostics_;
};

// What a kind refuses, gathered.
struct Refusals {
  std::vector<Refusal> found;
  void expect(bool holds, std::vector<std::string> keys, std::string message, std::string advice) {
    if (!holds) {
      found.push_back({std::move(keys), std::move(message), std::move(advice)});
    }
  }
};

// "4 or 8": the divisors of `value` nearest to `wanted`, from below and from above.
inline std::string divisors_near(std::int64_t value, std::int64_t wanted) {
  std::int64_t below = 1;
  std::int64_t above = value;
  const auto consider = [&](std::int64_t divisor) {
    below = divisor <= wanted ? std::max(below, divisor) : below;
    above = divisor >= wanted ? std::min(above, divisor) : above;
  };
  for (std::int64_t d = 1; d * d <= value; ++d) {
    if (value % d == 0) {
      consider(d);
      consider(value / d);
    }
  }
  return below == above ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

// A smaller number becomes 0 where it is used, and what it should keep apart from 0 is divided by.
inline bool positive_float(double value) {
  return value >= static_cast<double>(std::numeric_limits<float>::min());
}

// A larger number becomes infinite where it is used.
inline bool finite_float(double value) {
  return std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace orthant
