// Which tensor of a published model is which parameter of ours: each element of each of them once.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/pretrained/family.h"
#include "apps/pretrained/receipt.h"
#include "apps/pretrained/source_floats.h"

namespace orthant {

// left_out: patterns (* and ?) of tensors that are not to be used. The receipt has places, types, scales, and what was
// left out. Errors: ConfigError naming every tensor that does not fit, is missing, or has no place.
Receipt match_tensors(const std::filesystem::path& source, const Family& family, const Settings& settings,
                      const SourceWeights& weights, const SourceFloats& floats,
                      const std::vector<std::string>& left_out);

}  // namespace orthant
