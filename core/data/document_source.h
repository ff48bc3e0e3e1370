// DocumentSource: whole documents, packed into sequences or one in each.
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/data/corpus.h"
#include "core/data/data_size.h"

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

// The documents that begin in the last validation_fraction of the corpus are held out, the others are trained on: with
// a fraction of 1 none.
// They are packed once, in an order drawn from the seed.
class DocumentSource final : public SizedSequences {
 public:
  // Errors: ConfigError when a part has no document of two tokens or more.
  DocumentSource(Corpus corpus, const Settings& settings);
  // The same of these documents of the corpus, packed or not.
  DocumentSource(Corpus corpus, const std::vector<Document>& documents, const Settings& settings);

  std::string name() const override { return corpus_.name(); }
  std::int64_t vocabulary() const override { return corpus_.vocabulary(); }
  std::optional<std::int64_t> training_sequences() const override { return train_.packing.sequences(); }
  Sequence training(std::int64_t i) const override { return sequence(train_, i); }
  std::int64_t validation_sequences() const override { return validation_sequences_; }
  Sequence validation(std::int64_t i) const override;
  std::optional<DataSize> size() const override;

 private:
  struct Part {
    std::vector<Piece> pieces;
    Packing packing;
  };
  void pack(const std::vector<Document>& documents, const Settings& settings);
  Sequence sequence(const Part& part, std::int64_t i) const;

  Corpus corpus_;
  std::int64_t positions_;
  Part train_;
  Part held_out_;
  std::int64_t validation_sequences_ = 0;
};

}  // namespace orthant
