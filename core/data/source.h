// The batches of a run, made of the sequences of the source that data.source names.
#pragma once

#include <orthant/catalogue.h>
#include <orthant/settings.h>
#include <orthant/source.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batch.h"

namespace orthant {

// "text", "tokens", "chat", "pairs" and "synthetic".
void add_sources(Catalogue& catalogue);

// The source that settings.data describes, dealt to steps as settings.batch says. Opening reads headers
// and, where documents matter, finds them; no corpus is copied.
// Errors: ConfigError for files that are missing, empty, damaged or too short for one sequence and for the held-out
// part, and for a model vocabulary that is smaller than the source's.
std::unique_ptr<BatchSource> make_batch_source(const Settings& settings);

// The same checks, and what the user should know, a sentence each. may_write = false: no file is written, and what only
// a written file could tell is not looked at. Errors: as above, as SettingError where one setting is to blame.
std::vector<std::string> check_batch_source(const Settings& settings, bool may_write);

// A source of sequences that are open already.
std::unique_ptr<BatchSource> make_batch_source(std::unique_ptr<Sequences> sequences, const Settings& settings);

// What the data that settings.data names is called, and how much there is to train on; no size: it has no end. Nothing:
// a file would have to be written, and may not. Errors: as above.
struct OpenedSize {
  std::string name;
  std::optional<DataSize> size;
};
std::optional<OpenedSize> data_size(const Settings& settings, bool may_write);

// Tokenizer::hash() of what made the data's tokens, 0 for bytes. Nothing: it is not known. Errors: as for opening.
std::optional<std::uint64_t> tokenizer_hash(const Settings& settings);

// The entropy rate of the synthetic source in nats per token: the lowest loss that any model can reach on it.
double synthetic_entropy(const Settings& settings);

}  // namespace orthant
