#include "core/data/dealt_source.h"

#include <orthant/error.h>

#include "core/arch/links.h"
#include "core/data/batch_builder.h"
#include "core/data/epochs.h"

namespace orthant {

DealtSource::DealtSource(std::unique_ptr<Sequences> sequences, ValidationSets sets, const Settings& settings)
    : sequences_(std::move(sequences)),
      sets_(std::move(sets)),
      seed_(settings.run.seed),
      batch_(settings.batch),
      spaces_(spaces_of(settings)),
      vocabulary_(settings.model.vocab_size) {
  if (const auto n = sequences_->training_sequences(); n.has_value() && *n < 1) {
    throw ConfigError(fmt::format("{} has no sequence to train on", sequences_->name()));
  }
}

HostBatch DealtSource::train(std::int64_t step, std::int64_t first, std::int64_t count) const {
  check_range("training", first, count, sequences_of_step(batch_, step));
  const std::vector<EpochSequence> rows = rows_of(step, first, count);
  sequences_->expect(rows);
  // The next step's too, while this one trains.
  if (first + count <= sequences_of_step(batch_, step + 1)) {
    sequences_->expect(rows_of(step + 1, first, count));
  }
  HostBatch batch = padding_batch(first, count, spaces_);
  for (std::int64_t row = 0; row < count; ++row) {
    const EpochSequence& of = rows[static_cast<std::size_t>(row)];
    put_sequence(batch, row, sequences_->in_epoch(of), vocabulary_, {sequences_->name(), "training", of.number});
  }
  return batch;
}

std::vector<EpochSequence> DealtSource::rows_of(std::int64_t step, std::int64_t first, std::int64_t count) const {
  const std::int64_t begin = sequences_before(batch_, step) + first;
  const std::optional<std::int64_t> epoch = sequences_->training_sequences();
  std::vector<EpochSequence> rows;
  for (std::int64_t row = 0; row < count; ++row) {
    rows.push_back(number_in_epoch(seed_, begin + row, epoch));
  }
  return rows;
}

HostBatch DealtSource::validation(std::int64_t first, std::int64_t count) const {
  check_range("validation", first, count, validation_sequences());
  HostBatch batch = padding_batch(first, count, spaces_);
  for (std::int64_t row = 0; row < count; ++row) {
    put_sequence(batch, row, sequences_->validation(first + row), vocabulary_,
                 {sequences_->name(), "validation", first + row});
  }
  return batch;
}

}  // namespace orthant
