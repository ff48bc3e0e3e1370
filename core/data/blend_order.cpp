#include "core/data/blend_order.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>

namespace orthant {
namespace {

constexpr std::int64_t longest_period = std::int64_t{1} << 20;

// The weights as whole numbers without a common divisor; empty where they, or their sum, are too long.
std::vector<std::int64_t> whole(const std::vector<double>& weights) {
  for (double scale = 1; scale <= 1e6; scale *= 10) {
    std::vector<std::int64_t> turns;
    std::int64_t divisor = 0;
    for (const double weight : weights) {
      const double scaled = weight * scale, rounded = std::round(scaled);
      if (rounded < 1 || rounded > 0x1p52 || std::abs(scaled - rounded) > 1e-9 * rounded) {
        break;
      }
      turns.push_back(static_cast<std::int64_t>(rounded));
      divisor = std::gcd(divisor, turns.back());
    }
    if (turns.size() == weights.size()) {
      double sum = 0;
      for (std::int64_t& each : turns) {
        each /= divisor;
        sum += static_cast<double>(each);
      }
      return sum <= static_cast<double>(longest_period) ? turns : std::vector<std::int64_t>();
    }
  }
  return {};
}

// Shares of longest_period; those with the largest remainders are rounded up.
std::vector<std::int64_t> rounded(std::vector<double> weights) {
  const double greatest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) {
    weight /= greatest;  // the sum is a number then
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> turns;
  std::vector<std::pair<double, std::size_t>> remainders;
  std::int64_t left = longest_period;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * static_cast<double>(longest_period);
    turns.push_back(static_cast<std::int64_t>(exact));
    remainders.emplace_back(static_cast<double>(turns.back()) - exact, i);
    left -= turns.back();
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::size_t i = 0; i < static_cast<std::size_t>(left); ++i) {
    ++turns[remainders[i].second];
  }
  return turns;
}

}  // namespace

BlendOrder::BlendOrder(const std::vector<double>& weights) {
  if (weights.empty() || weights.size() > 10000) {
    throw ConfigError(fmt::format("data.blend: {} weights, expected 1 to 10000", weights.size()));
  }
  for (const double weight : weights) {
    if (!(weight > 0 && std::isfinite(weight))) {
      throw ConfigError(fmt::format("data.blend: the weight {} is not a number above 0", weight));
    }
  }
  turns_ = whole(weights);
  if (turns_.empty()) {
    turns_ = rounded(weights);
  }
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    if (turns_[i] < 1) {
      throw ConfigError(
          fmt::format("data.blend: the weight {} is less than 2^-20 of all: leave its file out", weights[i]));
    }
  }
  period_ = std::accumulate(turns_.begin(), turns_.end(), std::int64_t{0});
  // Parts whose next turn may come, by its deadline, and those that wait for its window to begin; the lower part first.
  using Entry = std::pair<std::int64_t, std::size_t>;
  using Queue = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;
  Queue ready, early;
  std::vector<std::int64_t> had(turns_.size(), 0);
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    early.emplace(0, i);
  }
  for (std::int64_t n = 0; n < period_; ++n) {
    while (!early.empty() && early.top().first <= n) {
      const std::size_t i = early.top().second;
      early.pop();
      ready.emplace(((had[i] + 1) * period_ + turns_[i] - 1) / turns_[i], i);
    }
    const std::size_t next = ready.top().second;
    ready.pop();
    part_.push_back(static_cast<std::uint32_t>(next));
    number_.push_back(static_cast<std::uint32_t>(had[next]++));
    early.emplace(had[next] * period_ / turns_[next], next);
  }
}

BlendOrder::Turn BlendOrder::operator()(std::int64_t n) const {
  const std::int64_t periods = n / period_;
  const std::size_t at = static_cast<std::size_t>(n % period_);
  return {part_[at], periods * turns_[part_[at]] + number_[at]};
}

}  // namespace orthant
