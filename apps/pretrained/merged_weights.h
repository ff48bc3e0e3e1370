// A checkpoint's matrices with their adapters ([lora]) added.
#pragma once

#include <orthant/settings.h>

#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"

namespace orthant {

// Fills out f32 with the parameter `name` of `shape`: W + scale B A where the checkpoint has its adapter, summed in
// fp64 and rounded once, else W. settings: of the run that wrote the checkpoint.
void read_merged(const CheckpointReader& reader, const Settings& settings, const std::string& name,
                 const std::vector<std::int64_t>& shape, float* out);

}  // namespace orthant
