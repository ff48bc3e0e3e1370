#include "apps/report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace orthant::report {
namespace {

constexpr std::array<const char*, 7> thousands = {"", "k", "M", "G", "T", "P", "E"};

// How many thousands to divide by: 0 below 10,000.
std::size_t thousands_of(double size) {
  std::size_t n = 0;
  if (size < 9999.5) {
    return 0;
  }
  while (size >= 999.5 && n + 1 < thousands.size()) {
    size /= 1000;
    ++n;
  }
  return n;
}

std::vector<double> multiples(double low, double high, double step) {
  std::vector<double> ticks;
  const double slack = 1e-9 * step;
  for (double i = std::ceil((low - slack) / step); i * step <= high + slack && ticks.size() < 100; ++i) {
    ticks.push_back(i == 0 ? 0.0 : i * step);
  }
  return ticks;
}

std::vector<double> linear_ticks(double low, double high, int count) {
  const double raw = (high - low) / std::max(count, 1);
  double unit = std::pow(10.0, std::floor(std::log10(raw)));
  std::vector<double> best;
  for (int round = 0; round < 2; ++round, unit /= 10) {
    for (const double factor : {10.0, 5.0, 2.5, 2.0, 1.0}) {
      best = multiples(low, high, factor * unit);
      if (static_cast<int>(best.size()) >= std::max(count - 1, 2)) {
        return best;
      }
    }
  }
  return best;
}

std::vector<double> decades(double low, double high, const std::vector<double>& factors) {
  std::vector<double> ticks;
  for (double decade = std::floor(std::log10(low)); decade <= std::ceil(std::log10(high)); ++decade) {
    for (const double factor : factors) {
      const double tick = factor * std::pow(10.0, decade);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

std::vector<double> logarithmic_ticks(double low, double high, int count) {
  std::vector<double> ticks = decades(low, high, {1});
  if (static_cast<int>(ticks.size()) > count + 1) {
    const std::size_t every = (ticks.size() + static_cast<std::size_t>(count) - 1) / static_cast<std::size_t>(count);
    std::vector<double> some;
    for (std::size_t i = 0; i < ticks.size(); i += every) {
      some.push_back(ticks[i]);
    }
    return some;
  }
  for (const std::vector<double>& factors : {std::vector<double>{1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 5, 7}}) {
    if (ticks.size() >= 3) {
      break;
    }
    ticks = decades(low, high, factors);
  }
  return ticks.size() >= 3 ? ticks : linear_ticks(low, high, count);
}

// Digits behind the point that tell multiples of `step` apart.
int decimals_for(double step) {
  for (int digits = 0; digits < 12; ++digits) {
    const double scaled = step * std::pow(10.0, digits);
    if (std::abs(scaled - std::round(scaled)) < 1e-6 * scaled) {
      return digits;
    }
  }
  return 12;
}

}  // namespace

std::string number_text(double value) {
  if (!std::isfinite(value)) {
    return "not finite";
  }
  const std::size_t n = thousands_of(std::abs(value));
  return fmt::format("{:.4g}{}", value / std::pow(1000.0, static_cast<double>(n)), thousands[n]);
}

std::vector<double> nice_ticks(double low, double high, ScaleKind kind, int count) {
  return kind == ScaleKind::linear ? linear_ticks(low, high, count) : logarithmic_ticks(low, high, count);
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks, ScaleKind kind) {
  std::vector<std::string> labels;
  double largest = 0, least_step = INFINITY;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    largest = std::max(largest, std::abs(ticks[i]));
    least_step = i > 0 ? std::min(least_step, std::abs(ticks[i] - ticks[i - 1])) : least_step;
  }
  const bool alike = kind == ScaleKind::linear && std::isfinite(least_step) && least_step > 1e-5 * largest &&
                     (largest >= 1e-3 || largest == 0);
  const std::size_t n = thousands_of(largest);
  const double divisor = std::pow(1000.0, static_cast<double>(n));
  for (const double tick : ticks) {
    labels.push_back(alike ? fmt::format("{:.{}f}{}", tick / divisor, decimals_for(least_step / divisor),
                                         tick == 0 ? "" : thousands[n])
                           : number_text(tick));
  }
  return labels;
}

Scale::Scale(const Axis& axis, double low, double high, double begin, double end, int ticks)
    : axis_(axis), low_(low), high_(high), begin_(begin), end_(end) {
  if (axis_.kind == ScaleKind::linear && axis_.from_zero) {
    low_ = std::min(low_, 0.0);
    high_ = std::max(high_, 0.0);
  }
  if (!(place(high_) - place(low_) > 1e-9 * std::max(std::abs(place(low_)), 1e-300))) {
    const double size = axis_.kind == ScaleKind::logarithmic ? 0 : low_ == 0 ? 1 : 0.1 * std::abs(low_);
    low_ = axis_.kind == ScaleKind::logarithmic ? low_ / 2 : low_ - size;
    high_ = axis_.kind == ScaleKind::logarithmic ? high_ * 2 : high_ + size;
  }
  if (axis_.ticks.empty()) {
    ticks_ = nice_ticks(low_ / axis_.divisor, high_ / axis_.divisor, axis_.kind, ticks);
    for (double& tick : ticks_) {
      tick *= axis_.divisor;
    }
    if (axis_.whole) {
      std::erase_if(ticks_, [](double tick) { return std::abs(tick - std::round(tick)) > 1e-9; });
    }
  } else {
    std::copy_if(axis_.ticks.begin(), axis_.ticks.end(), std::back_inserter(ticks_),
                 [&](double tick) { return tick >= low_ && tick <= high_; });
  }
}

double Scale::place(double value) const {
  return axis_.kind == ScaleKind::logarithmic ? std::log(value) : value;
}

double Scale::at(double value) const {
  return begin_ + (end_ - begin_) * (place(value) - place(low_)) / (place(high_) - place(low_));
}

std::vector<std::string> Scale::labels() const {
  std::vector<double> shown = ticks_;
  for (double& tick : shown) {
    tick /= axis_.divisor;
  }
  if (axis_.ticks.empty()) {
    return tick_labels(shown, axis_.kind);
  }
  std::vector<std::string> labels;
  for (const double tick : shown) {
    labels.push_back(number_text(tick));
  }
  return labels;
}

Unit bytes_unit(double largest) {
  Unit unit{1, "B", "bytes"};
  for (const char* name : {"KiB", "MiB", "GiB", "TiB"}) {
    if (largest / unit.divisor < 1024) {
      break;
    }
    unit = {unit.divisor * 1024, name, "bytes"};
  }
  return unit;
}

Unit seconds_unit(double largest) {
  if (largest < 1) {
    return largest < 1e-3 ? Unit{1e-6, "µs", "s"} : Unit{1e-3, "ms", "s"};
  }
  return largest < 600 ? Unit{1, "s", "s"} : largest < 3 * 3600 ? Unit{60, "min", "s"} : Unit{3600, "h", "s"};
}

}  // namespace orthant::report
