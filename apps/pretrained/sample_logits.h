// Logits of a checkpoint, computed on one rank of this process, for receipts: are these two the same model?
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/config/config.h"

namespace orthant {

// The same ids of every model with such a vocabulary.
std::vector<std::int32_t> sample_tokens(std::int64_t count, std::int64_t vocab_size);

// token: [sequences, positions] ids. Returns [sequences * positions, V]: the blocks as training computes them without
// dropout, in the configuration's type; the final norm and the output matrix in fp64, by their definition.
// Plugins of the configuration have no part in it. source: [sequences, n], of every further token space of the model;
// empty: each sequence's own ids backwards. Errors: as those of load_weights.
std::vector<double> sample_logits(const Config& config, const CheckpointReader& reader,
                                  const std::vector<std::int32_t>& token, std::int64_t sequences,
                                  const std::vector<std::int32_t>& source = {});
std::vector<double> sample_logits(const Config& config, const std::filesystem::path& checkpoint,
                                  const std::vector<std::int32_t>& token, std::int64_t sequences,
                                  const std::vector<std::int32_t>& source = {});
// What `source` is where nobody gives it.
std::vector<std::int32_t> sample_source(const std::vector<std::int32_t>& token, std::int64_t sequences);

struct Logits {
  std::string by;  // who computed them, for messages
  std::vector<double> value;
};

struct LogitsDifference {
  double largest = 0;     // of the expected logits, by size
  double difference = 0;  // the largest, over `largest`
};

// Errors: Error where they are not as many, or one is not finite.
LogitsDifference compare_logits(const Logits& found, const Logits& expected);

}  // namespace orthant
