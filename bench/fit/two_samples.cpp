#include "bench/fit/two_samples.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace orthant {
namespace {

constexpr std::size_t fewest = 5;

std::size_t block_of(std::size_t count) {
  return static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(count))));
}

// Numbers of a resample: blocks of neighbours.
std::vector<std::size_t> drawn_blocks(std::size_t count, Draws& draws) {
  std::vector<std::size_t> result;
  const std::size_t block = block_of(count);
  while (result.size() < count) {
    const std::size_t first = draws.index(count);
    for (std::size_t i = 0; i < block && result.size() < count; ++i) {
      result.push_back((first + i) % count);
    }
  }
  return result;
}

double middle(std::span<const double> values, std::span<const std::size_t> at) {
  std::vector<double> sorted;
  for (const std::size_t i : at) {
    sorted.push_back(values[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  return quantile(sorted, 0.5);
}

double geometric(std::span<const double> values, std::span<const std::size_t> at) {
  double sum = 0;
  for (const std::size_t i : at) {
    sum += std::log(values[i]);
  }
  return std::exp(sum / static_cast<double>(at.size()));
}

using Statistic = std::function<double(std::span<const double>, std::span<const std::size_t>)>;

TwoSamples compare(std::span<const double> before, std::span<const double> after, bool paired,
                   const Statistic& statistic, const BootstrapOptions& options) {
  const auto all = [](std::size_t count) {
    std::vector<std::size_t> at(count);
    for (std::size_t i = 0; i < count; ++i) {
      at[i] = i;
    }
    return at;
  };
  const std::size_t shorter = std::min(before.size(), after.size());
  Draws draws(options.seed);
  std::vector<double> ratios;
  for (int b = 0; b < options.resamples && shorter >= fewest; ++b) {
    const auto of_before = drawn_blocks(before.size(), draws);
    const auto of_after = paired ? of_before : drawn_blocks(after.size(), draws);
    ratios.push_back(statistic(after, of_after) / statistic(before, of_before));
  }
  // As many blocks as there are are independent.
  const double blocks = std::ceil(static_cast<double>(shorter) / static_cast<double>(block_of(shorter)));
  return judge(statistic(before, all(before.size())), statistic(after, all(after.size())), ratios, options,
               (paired ? 1 : 2) * (blocks - 1));
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::lower: return "lower";
    case Verdict::higher: return "higher";
    case Verdict::none_shown: return "no difference shown";
    case Verdict::noise_unknown: return "noise unknown";
  }
  return "";
}

TwoSamples judge(double before, double after, std::span<const double> ratios, const BootstrapOptions& options,
                 double degrees_of_freedom) {
  TwoSamples result{before, after, after / before, {}, Verdict::noise_unknown};
  if (ratios.empty()) {
    return result;
  }
  result.interval = percentile_interval(ratios, options.confidence, degrees_of_freedom);
  result.verdict = result.interval.high && *result.interval.high < 1 ? Verdict::lower
                   : result.interval.low && *result.interval.low > 1 ? Verdict::higher
                                                                     : Verdict::none_shown;
  return result;
}

TwoSamples compare_medians(std::span<const double> before, std::span<const double> after,
                           const BootstrapOptions& options) {
  return compare(before, after, false, middle, options);
}

TwoSamples compare_means(std::span<const double> before, std::span<const double> after, bool paired,
                         const BootstrapOptions& options) {
  return compare(before, after, paired, geometric, options);
}

}  // namespace orthant
