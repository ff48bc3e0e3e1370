// Logits of a checkpoint, computed on one rank of this process, for receipts: are these two the same model?
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/config/config.h"

namespace orthant {

// token: [sequences, positions] ids. Returns [sequences * positions, V]: the blocks as training computes them without
// dropout, in the configuration's type; the final norm and the output matrix in fp64, by their definition.
// Plugins of the configuration have no part in it. Errors: as those of load_weights; ConfigError for a norm other than
// rmsnorm.
std::vector<double> sample_logits(const Config& config, const std::filesystem::path& checkpoint,
                                  const std::vector<std::int32_t>& token, std::int64_t sequences);

}  // namespace orthant
