#include "core/data/dealt_source.h"

#include <orthant/error.h>

#include "core/data/batch_builder.h"
#include "core/data/epochs.h"

namespace orthant {

DealtSource::DealtSource(std::unique_ptr<Sequences> sequences, const Settings& settings)
    : sequences_(std::move(sequences)),
      seed_(settings.run.seed),
      batch_sequences_(settings.batch.sequences),
      positions_(settings.data.sequence_length),
      vocabulary_(settings.model.vocab_size) {
  if (const auto n = sequences_->training_sequences(); n.has_value() && *n < 1) {
    throw ConfigError(fmt::format("{} has no sequence to train on", sequences_->name()));
  }
}

void DealtSource::put(HostBatch& batch, std::int64_t row, const char* part, std::int64_t i,
                      const Sequence& sequence) const {
  std::int64_t at = 0;
  for (const SequenceDocument& document : sequence) {
    const std::int64_t n = static_cast<std::int64_t>(document.token.size());
    require(at + n <= positions_, "{}: {} sequence {} has more than data.sequence_length = {} tokens",
            sequences_->name(), part, i, positions_);
    require(document.label.empty() || document.label.size() == document.token.size(),
            "{}: {} sequence {} has {} labels for {} tokens", sequences_->name(), part, i, document.label.size(), n);
    for (std::size_t t = 0; t < document.token.size(); ++t) {
      const std::int32_t token = document.token[t], label = document.label.empty() ? -1 : document.label[t];
      require(token >= 0 && token < vocabulary_ && label < vocabulary_,
              "{}: {} sequence {} has token {} and label {}, model.vocab_size is {}", sequences_->name(), part, i,
              token, label, vocabulary_);
    }
    put_document(batch, row, at, document);
    at += n;
  }
}

HostBatch DealtSource::train(std::int64_t step, std::int64_t first, std::int64_t count) const {
  check_range("training", first, count, batch_sequences_);
  HostBatch batch = padding_batch(first, count, positions_);
  const std::optional<std::int64_t> epoch = sequences_->training_sequences();
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t number = number_in_epoch(seed_, step * batch_sequences_ + first + row, epoch);
    put(batch, row, "training", number, sequences_->training(number));
  }
  return batch;
}

HostBatch DealtSource::validation(std::int64_t first, std::int64_t count) const {
  check_range("validation", first, count, validation_sequences());
  HostBatch batch = padding_batch(first, count, positions_);
  for (std::int64_t row = 0; row < count; ++row) {
    put(batch, row, "validation", first + row, sequences_->validation(first + row));
  }
  return batch;
}

}  // namespace orthant
