#include "core/data/data_size.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>

namespace orthant {

std::optional<DataSize> size_of(const Sequences& sequences) {
  if (const auto* sized = dynamic_cast<const SizedSequences*>(&sequences)) {
    return sized->size();
  }
  const std::optional<std::int64_t> count = sequences.training_sequences();
  return count.has_value() ? std::optional(DataSize{.sequences = *count}) : std::nullopt;
}

std::int64_t steps_of_epochs(const BatchSettings& batch, double epochs, std::int64_t sequences) {
  constexpr double most_steps = 1e12, most_sequences = 0x1p62;
  const double exact = epochs * static_cast<double>(sequences);
  // 0.1 is no sum of powers of two: what its product has too much is no step.
  const double wanted = std::ceil(exact - 1e-9 * std::max(exact, 1.0));
  const auto too_many = [&](double steps) {
    return SettingError("run.epochs", fmt::format("[run] epochs: {} epochs of {} sequences are {:.3g} steps, at most "
                                                  "{:.0e} can be counted; write fewer",
                                                  epochs, sequences, steps, most_steps));
  };
  if (wanted >= most_sequences) {
    throw too_many(wanted / static_cast<double>(largest_batch(batch)));
  }
  const std::int64_t count = std::max<std::int64_t>(static_cast<std::int64_t>(wanted), 1);
  // Where the batch grows on the way, the last of its sizes that is reached before.
  std::int64_t from = 0;
  for (const std::int64_t grows : batch.grow_after) {
    from = sequences_before(batch, grows) < count ? grows : from;
  }
  const std::int64_t left = count - sequences_before(batch, from), size = sequences_of_step(batch, from);
  const std::int64_t steps = from + (left + size - 1) / size;
  if (static_cast<double>(steps) > most_steps) {
    throw too_many(static_cast<double>(steps));
  }
  return steps;
}

std::string size_text(const DataSize& size, const Settings& settings) {
  const auto counted = [](std::int64_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  const std::int64_t read = sequences_before(settings.batch, settings.run.steps);
  const double epochs = static_cast<double>(read) / static_cast<double>(std::max<std::int64_t>(size.sequences, 1));
  return fmt::format("data: {}{} to train on{}; {} {} {}{}, {:.3g} epochs", counted(size.sequences, "sequence"),
                     size.windows ? fmt::format(" of {}", settings.data.sequence_length) : "",
                     size.tokens ? ", " + counted(*size.tokens, "token") : "", counted(settings.run.steps, "step"),
                     settings.run.steps == 1 ? "reads" : "read",
                     size.windows ? std::to_string(read) : counted(read, "sequence"),
                     size.windows ? " at random places" : "", epochs);
}

}  // namespace orthant
