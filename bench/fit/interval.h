// Intervals from bootstrap draws (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace orthant {

// A side without a value is open: the data do not bound the quantity there.
struct Interval {
  std::optional<double> low, high;
  bool contains(double value) const { return (!low || *low <= value) && (!high || value <= *high); }
};

// What a bootstrap is made with. The same options and data give the same bits.
struct BootstrapOptions {
  int resamples = 1000;
  double confidence = 0.95;
  std::uint64_t seed = 1;
};

// The quantile at `share` (0..1) of `sorted`, which ascends; linear between order statistics.
// REQUIRES: sorted is not empty.
double quantile(std::span<const double> sorted, double share);

// The quantile at `share` of the standard normal distribution. REQUIRES: 0 < share < 1.
double normal_quantile(double share);

// The share of draws that an interval leaves out on each side. A percentile interval of few data is too short:
// residuals are known from `degrees_of_freedom` numbers only. The share shrinks as a t quantile stands beyond the
// normal one (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 3.1: the expanded percentile
// interval).
double tail_share(double confidence, double degrees_of_freedom);

// The expanded percentile interval of `draws`, in any order. An infinite draw stands for "beyond what could be
// searched": a side is open where its quantile falls on one. Without draws both sides are open.
Interval percentile_interval(std::span<const double> draws, double confidence, double degrees_of_freedom);

// Numbers for resampling. Bits of mt19937_64 are the standard's on every machine; its distributions are not.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : bits_(seed) {}
  // Uniform on 0 .. count - 1. REQUIRES: 0 < count < 2^32.
  std::size_t index(std::size_t count) { return static_cast<std::size_t>(((bits_() >> 32) * count) >> 32); }

 private:
  std::mt19937_64 bits_;
};

}  // namespace orthant
