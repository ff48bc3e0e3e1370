// DocumentSource: whole documents, packed into sequences or one in each.
#pragma once

#include <orthant/settings.h>

#include <cstdint>
#include <vector>

#include "core/data/batch.h"
#include "core/data/corpus.h"

namespace orthant {

// Which pieces of documents stand in which sequence: sequence s holds pieces order[start[s], start[s + 1]).
struct Packing {
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> start;
  std::int64_t sequences() const { return static_cast<std::int64_t>(start.size()) - 1; }
};

// A document, or a part of one that is longer than a sequence. `label`: the token after it belongs to the document.
struct Piece {
  std::int64_t begin = 0;
  std::int32_t size = 0;
  bool label = false;
};

// Documents cut to at most `positions` tokens each. Left out: what has nothing to predict (a document of one token,
// and a rest of one token, which is the label of the piece before it).
std::vector<Piece> cut_documents(const std::vector<Document>& documents, std::int64_t positions);

// Best fit, in the given order of pieces: each goes to the fullest open sequence that has room for it ("Fewer
// truncations improve language modeling", Ding et al., ICML 2024, without their sorting). O(n log positions).
Packing pack_pieces(const std::vector<Piece>& pieces, const std::vector<std::uint32_t>& order, std::int64_t positions);

// The documents that begin in the last validation_fraction of the corpus are held out, the others are trained on.
// They are packed once, in an order drawn from the seed; sequences are drawn without replacement, in a new order each
// epoch: sequence g of step s is number s * batch.sequences + g of the endless row of epochs.
class DocumentSource final : public BatchSource {
 public:
  // Errors: ConfigError when a part has no document of two tokens or more.
  DocumentSource(Corpus corpus, const Settings& settings);

  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override;
  HostBatch validation(std::int64_t first, std::int64_t count) const override;
  std::int64_t validation_sequences() const override { return validation_sequences_; }
  std::int64_t vocabulary() const override { return corpus_.vocabulary(); }

 private:
  struct Part {
    std::vector<Piece> pieces;
    Packing packing;
  };
  void fill(HostBatch& batch, std::int64_t row, const Part& part, std::int64_t sequence) const;

  Corpus corpus_;
  std::uint64_t seed_;
  std::int64_t batch_sequences_;
  std::int64_t positions_;
  Part train_;
  Part held_out_;
  std::int64_t validation_sequences_ = 0;
};

}  // namespace orthant
