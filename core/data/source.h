// The batch sources of a run: text, token files, or a synthetic source of known entropy.
#pragma once

#include <orthant/settings.h>

#include <memory>

#include "core/data/batch.h"

namespace orthant {

// The source that settings.data describes. Sequences have data.sequence_length positions; settings.batch.sequences
// of them make a step. Opening reads headers and, where documents matter, finds them; no corpus is copied.
// Errors: ConfigError for files that are missing, empty, damaged or too short for one sequence and for the held-out
// part, and for a model vocabulary that is smaller than the corpus'.
std::unique_ptr<BatchSource> make_batch_source(const Settings& settings);

// The entropy rate of the synthetic source in nats per token: the lowest loss that any model can reach on it.
double synthetic_entropy(const Settings& settings);

}  // namespace orthant
