// Helpers to fill a HostBatch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <orthant/plan.h>
#include <orthant/source.h>

#include "core/data/batch.h"

namespace orthant {

// A batch of padding: token 0, label -1, position 0, valid 0; `index` is set for sequences from `first` on.
HostBatch padding_batch(std::int64_t first, std::int64_t count, std::int64_t positions);
// The same in every token space of a model.
HostBatch padding_batch(std::int64_t first, std::int64_t count, const std::vector<Space>& spaces);

// Writes a document at position `at` of sequence `row`, in this space alone. Without labels, each token's is the next
// one, the last has none. REQUIRES: it fits.
void put_document(HostBatch& batch, std::int64_t row, std::int64_t at, const SequenceDocument& document);
// document_of the tokens.
void put_document(HostBatch& batch, std::int64_t row, std::int64_t at, std::span<const std::int32_t> tokens,
                  std::int64_t n);

// "'a.txt': validation sequence 3".
struct SequencePlace {
  std::string of, part;
  std::int64_t number;
  const char* space = "data.sequence_length";  // what says how many tokens there may be
};
// Writes a sequence's documents, in every space. Errors: Error for one that is longer than the batch's, whose ids or
// labels are outside the vocabulary, or that has not a token of each space and its numbers.
void put_sequence(HostBatch& batch, std::int64_t row, const Sequence& sequence, std::int64_t vocabulary,
                  const SequencePlace& place);

// tokens[0, n) as a document. When tokens has n + 1 entries the last is only a label, else the last token has none.
// REQUIRES: tokens.size() is n or n + 1.
SequenceDocument document_of(std::vector<std::int32_t> tokens, std::int64_t n);

// Of every sequence the positions of `runs`, in their order.
struct PositionRun {
  std::int64_t begin, count;
};
HostBatch take_positions(const HostBatch& whole, std::span<const PositionRun> runs);

// Errors: Error unless 0 <= first, 0 <= count and first + count <= sequences.
void check_range(const char* what, std::int64_t first, std::int64_t count, std::int64_t sequences);

}  // namespace orthant
