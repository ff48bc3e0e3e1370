#include "core/data/stream_source.h"

#include <orthant/error.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/data/batch_builder.h"

namespace orthant {
namespace {

// A uniformly random integer below `bound`, of 53 bits: a corpus may have more than 2^32 tokens.
std::int64_t uniform_below(const RandomKey& key, std::uint64_t index, std::int64_t bound) {
  const Philox4 r = philox(key, index);
  const std::uint64_t bits = (std::uint64_t{r.v[0]} << 21) | (r.v[1] >> 11);
  const double unit = static_cast<double>(bits) * 0x1p-53;
  return std::min(static_cast<std::int64_t>(unit * static_cast<double>(bound)), bound - 1);
}

}  // namespace

StreamSource::StreamSource(Corpus corpus, const Settings& settings)
    : corpus_(std::move(corpus)),
      seed_(settings.run.seed),
      batch_sequences_(settings.batch.sequences),
      positions_(settings.data.sequence_length),
      train_tokens_(static_cast<std::int64_t>(
          std::floor(static_cast<double>(corpus_.size()) * (1.0 - settings.data.validation_fraction)))) {
  const std::int64_t held_out = corpus_.size() - train_tokens_;
  const bool all_held_out = settings.data.validation_fraction == 1;
  if (!all_held_out && train_tokens_ < positions_ + 1) {
    throw ConfigError(
        fmt::format("data.path: {} has {} tokens to train on ({} held out), a sequence of {} needs {}: use a longer "
                    "text, a shorter "
                    "data.sequence_length or a smaller data.validation_fraction",
                    corpus_.name(), train_tokens_, held_out, positions_, positions_ + 1));
  }
  if (settings.data.validation_fraction == 0 || settings.data.validation_sequences == 0) {
    return;
  }
  if (all_held_out && held_out < positions_ + 1) {
    throw ConfigError(
        fmt::format("data.path: {} has {} tokens, a sequence of {} needs {}: use a longer text or a shorter "
                    "data.sequence_length",
                    corpus_.name(), held_out, positions_, positions_ + 1));
  }
  if (held_out < positions_ + 1) {
    throw ConfigError(fmt::format(
        "data.validation_fraction: {} of {} holds out {} tokens, a sequence of {} needs {}: raise it, or 0 for none",
        settings.data.validation_fraction, corpus_.name(), held_out, positions_, positions_ + 1));
  }
  const std::int64_t predictions = held_out - 1;
  const std::int64_t whole = predictions / positions_;
  if (whole >= settings.data.validation_sequences) {
    windows_ = settings.data.validation_sequences;
    stride_ = predictions / windows_;
  } else {
    windows_ = (predictions + positions_ - 1) / positions_;
    stride_ = positions_;
  }
}

// Window g of step s is drawn with key s and counter g, where the batch does not grow. Where it does, the row of
// windows is the same, and is cut elsewhere.
Sequence StreamSource::training(std::int64_t i) const {
  const RandomKey key{seed_, Purpose::data_order, 0, static_cast<std::uint32_t>(i / batch_sequences_)};
  std::vector<std::int32_t> window(static_cast<std::size_t>(positions_) + 1);
  corpus_.read(uniform_below(key, static_cast<std::uint64_t>(i % batch_sequences_), train_tokens_ - positions_),
               window);
  return {document_of(std::move(window), positions_)};
}

Sequence StreamSource::validation(std::int64_t i) const {
  const std::int64_t begin = train_tokens_ + i * stride_;
  const std::int64_t predictions = std::min(positions_, corpus_.size() - 1 - begin);
  std::vector<std::int32_t> window(static_cast<std::size_t>(predictions) + 1);
  corpus_.read(begin, window);
  return {document_of(std::move(window), predictions)};
}

}  // namespace orthant
