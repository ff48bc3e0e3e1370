#include "core/data/batch_builder.h"

#include <orthant/error.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace orthant {

HostBatch padding_batch(std::int64_t first, std::int64_t count, std::int64_t positions) {
  const std::size_t n = static_cast<std::size_t>(count * positions);
  HostBatch batch;
  batch.sequences = count;
  batch.positions = positions;
  batch.token.assign(n, 0);
  batch.label.assign(n, -1);
  batch.position.assign(n, 0);
  batch.first.assign(n, 0);
  batch.valid.assign(n, 0);
  batch.index.resize(n);
  std::iota(batch.index.begin(), batch.index.end(), first * positions);
  // Each padding token is a document of its own, so that it attends to nothing but itself.
  for (std::size_t i = 0; i < n; ++i) {
    batch.first[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(positions));
  }
  return batch;
}

HostBatch padding_batch(std::int64_t first, std::int64_t count, const std::vector<Space>& spaces) {
  HostBatch batch;
  for (const Space& space : spaces) {
    HostBatch of = padding_batch(first, count, space.positions);
    of.columns = space.columns;
    of.value.assign(of.token.size() * static_cast<std::size_t>(space.columns), 0);
    if (&space == &spaces.front()) {
      batch = std::move(of);
    } else {
      batch.spaces.push_back(std::move(of));
    }
  }
  return batch;
}

void put_document(HostBatch& batch, std::int64_t row, std::int64_t at, const SequenceDocument& document) {
  const std::vector<std::int32_t>& tokens = document.token;
  const std::size_t start = static_cast<std::size_t>(row * batch.positions + at);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.token[start + i] = tokens[i];
    batch.label[start + i] = !document.label.empty() ? document.label[i] : i + 1 < tokens.size() ? tokens[i + 1] : -1;
    batch.position[start + i] = static_cast<std::int32_t>(i);
    batch.first[start + i] = static_cast<std::int32_t>(at);
    batch.valid[start + i] = 1;
  }
  std::copy(document.value.begin(), document.value.end(),
            batch.value.begin() + static_cast<std::ptrdiff_t>(start) * batch.columns);
}

void put_document(HostBatch& batch, std::int64_t row, std::int64_t at, std::span<const std::int32_t> tokens,
                  std::int64_t n) {
  put_document(batch, row, at, document_of({tokens.begin(), tokens.end()}, n));
}

namespace {

void put_in_space(HostBatch& batch, std::int64_t row, std::int64_t at, const SequenceDocument& document,
                  std::int64_t vocabulary, const SequencePlace& place) {
  const std::int64_t n = static_cast<std::int64_t>(document.token.size());
  require(at + n <= batch.positions, "{}: {} sequence {} has more than {} = {} tokens", place.of, place.part,
          place.number, place.space, batch.positions);
  require(document.label.empty() || document.label.size() == document.token.size(),
          "{}: {} sequence {} has {} labels for {} tokens", place.of, place.part, place.number, document.label.size(),
          n);
  require(static_cast<std::int64_t>(document.value.size()) == n * batch.columns,
          "{}: {} sequence {} has {} numbers for {} tokens, expected {} of each", place.of, place.part, place.number,
          document.value.size(), n, batch.columns);
  for (std::size_t t = 0; t < document.token.size(); ++t) {
    const std::int32_t token = document.token[t], label = document.label.empty() ? -1 : document.label[t];
    require(token >= 0 && token < vocabulary && label < vocabulary,
            "{}: {} sequence {} has token {} and label {}, model.vocab_size is {}", place.of, place.part, place.number,
            token, label, vocabulary);
  }
  put_document(batch, row, at, document);
}

}  // namespace

void put_sequence(HostBatch& batch, std::int64_t row, const Sequence& sequence, std::int64_t vocabulary,
                  const SequencePlace& place) {
  std::int64_t at = 0;
  std::vector<std::int64_t> at_space(batch.spaces.size(), 0);
  for (const SequenceDocument& document : sequence) {
    require(document.spaces.size() == batch.spaces.size(),
            "{}: {} sequence {} has documents of {} token spaces, the model has {}", place.of, place.part, place.number,
            document.spaces.size() + 1, batch.spaces.size() + 1);
    put_in_space(batch, row, at, document, vocabulary, place);
    at += static_cast<std::int64_t>(document.token.size());
    for (std::size_t i = 0; i < batch.spaces.size(); ++i) {
      SequencePlace there = place;
      there.space = "its token space";
      require(!document.spaces[i].token.empty(), "{}: {} sequence {} has a document without a token in space {}",
              place.of, place.part, place.number, i + 1);
      put_in_space(batch.spaces[i], row, at_space[i], document.spaces[i], vocabulary, there);
      at_space[i] += static_cast<std::int64_t>(document.spaces[i].token.size());
    }
  }
}

SequenceDocument document_of(std::vector<std::int32_t> tokens, std::int64_t n) {
  SequenceDocument document;
  document.label.assign(tokens.begin() + 1, tokens.end());
  document.label.resize(n, -1);
  document.token = std::move(tokens);
  document.token.resize(n);
  return document;
}

HostBatch take_positions(const HostBatch& whole, std::span<const PositionRun> runs) {
  HostBatch part;
  part.sequences = whole.sequences;
  for (const PositionRun& run : runs) {
    part.positions += run.count;
  }
  auto take = [&](const auto& from, auto& to) {
    to.reserve(part.sequences * part.positions);
    for (std::int64_t s = 0; s < whole.sequences; ++s) {
      for (const PositionRun& run : runs) {
        const auto begin = from.begin() + (s * whole.positions + run.begin);
        to.insert(to.end(), begin, begin + run.count);
      }
    }
  };
  take(whole.token, part.token);
  take(whole.label, part.label);
  take(whole.position, part.position);
  take(whole.first, part.first);
  take(whole.valid, part.valid);
  take(whole.index, part.index);
  part.columns = whole.columns;
  for (std::int64_t s = 0; s < whole.sequences && whole.columns > 0; ++s) {
    for (const PositionRun& run : runs) {
      const auto begin = whole.value.begin() + (s * whole.positions + run.begin) * whole.columns;
      part.value.insert(part.value.end(), begin, begin + run.count * whole.columns);
    }
  }
  return part;
}

void check_range(const char* what, std::int64_t first, std::int64_t count, std::int64_t sequences) {
  require(first >= 0 && count >= 0 && first <= sequences - count, "{} sequences [{}, {}) are outside [0, {})", what,
          first, first + count, sequences);
}

}  // namespace orthant
