#include "core/data/document_source.h"

#include <orthant/error.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "core/data/batch_builder.h"
#include "core/data/permutation.h"

namespace orthant {
namespace {

constexpr std::uint32_t packing_site = 1;  // of Purpose::data_order; 0: a stream's windows, 2: epochs

std::vector<std::uint32_t> in_order(std::size_t count) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

Packing one_each(std::size_t count) {
  return {.order = in_order(count), .start = in_order(count + 1)};
}

}  // namespace

std::vector<Piece> cut_documents(const std::vector<Document>& documents, std::int64_t positions) {
  std::vector<Piece> pieces;
  for (const Document& d : documents) {
    for (std::int64_t begin = d.begin; d.end - begin >= 2; begin += positions) {
      const std::int64_t size = std::min(positions, d.end - begin);
      pieces.push_back({begin, static_cast<std::int32_t>(size), begin + size < d.end});
    }
  }
  return pieces;
}

Packing pack_pieces(const std::vector<Piece>& pieces, const std::vector<std::uint32_t>& order, std::int64_t positions) {
  std::vector<std::uint32_t> sequence_of(order.size());
  std::vector<std::uint32_t> counts;
  std::vector<std::vector<std::uint32_t>> open(static_cast<std::size_t>(positions) + 1);  // by free positions
  std::set<std::int64_t> rooms;                                                           // where `open` is not empty
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t size = pieces[order[i]].size;
    std::int64_t room = positions;
    std::uint32_t sequence = static_cast<std::uint32_t>(counts.size());
    if (auto it = rooms.lower_bound(size); it != rooms.end()) {
      room = *it;
      auto& candidates = open[room];
      sequence = candidates.back();
      candidates.pop_back();
      if (candidates.empty()) {
        rooms.erase(it);
      }
    } else {
      counts.push_back(0);
    }
    sequence_of[i] = sequence;
    ++counts[sequence];
    if (const std::int64_t left = room - size; left >= 2) {  // no piece has fewer than two tokens
      open[left].push_back(sequence);
      rooms.insert(left);
    }
  }
  Packing packing;
  packing.start.assign(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), packing.start.begin() + 1);
  std::vector<std::uint32_t> next(packing.start.begin(), packing.start.end() - 1);
  packing.order.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    packing.order[next[sequence_of[i]]++] = order[i];
  }
  return packing;
}

DocumentSource::DocumentSource(Corpus corpus, const Settings& settings)
    : corpus_(std::move(corpus)), positions_(settings.data.sequence_length) {
  pack(corpus_.documents(settings.data.separator), settings);
}

DocumentSource::DocumentSource(Corpus corpus, const std::vector<Document>& documents, const Settings& settings)
    : corpus_(std::move(corpus)), positions_(settings.data.sequence_length) {
  pack(documents, settings);
}

void DocumentSource::pack(const std::vector<Document>& documents, const Settings& settings) {
  const DataSettings& data = settings.data;
  const std::int64_t cut =
      static_cast<std::int64_t>(std::floor(static_cast<double>(corpus_.size()) * (1.0 - data.validation_fraction)));
  const auto held_out = std::lower_bound(documents.begin(), documents.end(), cut,
                                         [](const Document& d, std::int64_t at) { return d.begin < at; });
  train_.pieces = cut_documents({documents.begin(), held_out}, positions_);
  held_out_.pieces = cut_documents({held_out, documents.end()}, positions_);
  const bool all_held_out = data.validation_fraction == 1;
  if (!all_held_out && train_.pieces.empty()) {
    throw ConfigError(fmt::format("data.path: {} has no document of two tokens or more to train on ({} documents)",
                                  corpus_.name(), documents.size()));
  }
  if (train_.pieces.size() >= std::numeric_limits<std::uint32_t>::max()) {
    throw ConfigError(fmt::format("data.path: {} has {} documents, at most 2^32 - 2 can be indexed", corpus_.name(),
                                  train_.pieces.size()));
  }
  const bool packed = data.documents == Documents::packed;
  if (packed && !train_.pieces.empty()) {
    const Permutation shuffle({settings.run.seed, Purpose::data_order, packing_site, 0}, train_.pieces.size());
    std::vector<std::uint32_t> order(train_.pieces.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<std::uint32_t>(shuffle(i));
    }
    train_.packing = pack_pieces(train_.pieces, order, positions_);
  } else {
    train_.packing = one_each(train_.pieces.size());
  }
  if (data.validation_fraction == 0 || data.validation_sequences == 0) {
    return;
  }
  if (held_out_.pieces.empty() && all_held_out) {
    throw ConfigError(fmt::format("data.path: {} has no document of two tokens or more ({} documents)", corpus_.name(),
                                  documents.size()));
  }
  if (held_out_.pieces.empty()) {
    throw ConfigError(fmt::format(
        "data.validation_fraction: no document of two tokens or more begins in the last {} of {} ({} documents); raise "
        "it, or 0 for none",
        data.validation_fraction, corpus_.name(), documents.size()));
  }
  const std::size_t pieces = held_out_.pieces.size();
  held_out_.packing = packed ? pack_pieces(held_out_.pieces, in_order(pieces), positions_) : one_each(pieces);
  validation_sequences_ = std::min(data.validation_sequences, held_out_.packing.sequences());
}

Sequence DocumentSource::sequence(const Part& part, std::int64_t i) const {
  const std::size_t s = static_cast<std::size_t>(i);
  Sequence documents;
  for (std::uint32_t at = part.packing.start[s]; at < part.packing.start[s + 1]; ++at) {
    const Piece& piece = part.pieces[part.packing.order[at]];
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(piece.size) + (piece.label ? 1 : 0));
    corpus_.read(piece.begin, tokens);
    documents.push_back(document_of(std::move(tokens), piece.size));
  }
  return documents;
}

std::optional<DataSize> DocumentSource::size() const {
  const auto add = [](std::int64_t sum, const Piece& piece) { return sum + piece.size; };
  return DataSize{.sequences = train_.packing.sequences(),
                  .tokens = std::accumulate(train_.pieces.begin(), train_.pieces.end(), std::int64_t{0}, add)};
}

Sequence DocumentSource::validation(std::int64_t i) const {
  return sequence(held_out_, i * held_out_.packing.sequences() / validation_sequences_);
}

}  // namespace orthant
