#include "core/data/synthetic_source.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "core/data/batch_builder.h"

namespace orthant {
namespace {

// Sites of Purpose::synthetic.
constexpr std::uint32_t train_site = 0;
constexpr std::uint32_t validation_site = 1;
constexpr std::uint32_t table_site = 2;

double unit(std::uint32_t bits) {  // in (0, 1)
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

}  // namespace

SyntheticSource::SyntheticSource(const Settings& settings)
    : vocabulary_(settings.model.vocab_size),
      seed_(settings.run.seed),
      batch_sequences_(settings.batch.sequences),
      positions_(settings.data.sequence_length),
      validation_sequences_(settings.data.validation_sequences),
      branches_(static_cast<std::size_t>(std::min<std::int64_t>(4, settings.model.vocab_size))) {
  if (vocabulary_ < 2) {
    throw ConfigError(
        fmt::format("model.vocab_size: the synthetic source needs 2 tokens or more, found {}", vocabulary_));
  }
  constexpr std::int64_t most = std::int64_t{1} << 20;  // a second to find what is drawn how often
  if (vocabulary_ > most) {
    throw SettingError("model.vocab_size",
                       fmt::format("model.vocab_size: the synthetic source makes at most {} tokens, "
                                   "found {}",
                                   most, vocabulary_));
  }
  const std::size_t states = static_cast<std::size_t>(vocabulary_);
  successor_.resize(states * branches_);
  probability_.resize(states * branches_);
  const RandomKey key{seed_, Purpose::synthetic, table_site, 0};
  for (std::size_t state = 0; state < states; ++state) {
    const auto row = std::span(successor_).subspan(state * branches_, branches_);
    const auto weight = std::span(probability_).subspan(state * branches_, branches_);
    // The first successor is the next state: a ring through all states, so that each can be reached from each.
    row[0] = static_cast<std::int32_t>((state + 1) % states);
    for (std::size_t k = 0; k < branches_; ++k) {
      const Philox4 r = philox(key, state * branches_ + k);
      weight[k] = unit(r.v[1]) / static_cast<double>(1 + k);
      if (k > 0) {
        std::size_t next = (std::uint64_t{r.v[0]} * states) >> 32;
        while (std::find(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(k), static_cast<std::int32_t>(next)) !=
               row.begin() + static_cast<std::ptrdiff_t>(k)) {
          next = (next + 1) % states;
        }
        row[k] = static_cast<std::int32_t>(next);
      }
    }
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    for (double& w : weight) {
      w /= total;
    }
  }
}

const SyntheticSource::Stationary& SyntheticSource::stationary() const {
  std::call_once(once_, [this] { stationary_ = find_stationary(); });
  return stationary_;
}

SyntheticSource::Stationary SyntheticSource::find_stationary() const {
  const std::size_t states = static_cast<std::size_t>(vocabulary_);
  std::vector<double> now(states, 1.0 / static_cast<double>(states)), next(states);
  // Averaging with the chain that stands still keeps the limit and makes a periodic chain converge, too.
  for (int iteration = 0; iteration < 2000; ++iteration) {
    for (std::size_t s = 0; s < states; ++s) {
      next[s] = 0.5 * now[s];
    }
    for (std::size_t s = 0; s < states; ++s) {
      for (std::size_t k = 0; k < branches_; ++k) {
        next[successor_[s * branches_ + k]] += 0.5 * now[s] * probability_[s * branches_ + k];
      }
    }
    double change = 0;
    for (std::size_t s = 0; s < states; ++s) {
      change += std::abs(next[s] - now[s]);
    }
    now.swap(next);
    if (change < 1e-13) {
      break;
    }
  }
  Stationary found;
  for (std::size_t i = 0; i < probability_.size(); ++i) {
    found.entropy -= now[i / branches_] * probability_[i] * std::log(probability_[i]);
  }
  found.cumulative.resize(states);
  std::partial_sum(now.begin(), now.end(), found.cumulative.begin());
  return found;
}

Sequence SyntheticSource::generate(const RandomKey& key, std::int64_t number) const {
  const std::uint64_t draws = static_cast<std::uint64_t>(positions_) + 1;
  std::vector<std::int32_t> tokens(draws);
  const std::uint64_t begin = static_cast<std::uint64_t>(number) * draws;
  const std::vector<double>& cumulative = stationary().cumulative;
  const double start = unit(philox(key, begin).v[0]) * cumulative.back();
  tokens[0] =
      static_cast<std::int32_t>(std::upper_bound(cumulative.begin(), cumulative.end(), start) - cumulative.begin());
  tokens[0] = std::min(tokens[0], static_cast<std::int32_t>(vocabulary_ - 1));
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const std::size_t state = static_cast<std::size_t>(tokens[i - 1]) * branches_;
    double left = unit(philox(key, begin + i).v[0]);
    std::size_t k = 0;
    while (k + 1 < branches_ && left >= probability_[state + k]) {
      left -= probability_[state + k++];
    }
    tokens[i] = successor_[state + k];
  }
  return {document_of(std::move(tokens), positions_)};
}

// Sequence g of step s is drawn with key s, where the batch does not grow. Where it does, the row of sequences is the
// same, and is cut elsewhere.
Sequence SyntheticSource::training(std::int64_t i) const {
  return generate({seed_, Purpose::synthetic, train_site, static_cast<std::uint32_t>(i / batch_sequences_)},
                  i % batch_sequences_);
}

Sequence SyntheticSource::validation(std::int64_t i) const {
  return generate({seed_, Purpose::synthetic, validation_site, 0}, i);
}

}  // namespace orthant
