// Numbers of a line of metrics that the step's report does not have.
#pragma once

#include <orthant/device.h>
#include <orthant/group.h>
#include <orthant/settings.h>

#include <cstdint>
#include <optional>

namespace orthant {

// The most tensor memory held so far by kind, of the first of the ranks that have held most. Collective over `world`.
BytesByKind largest_peak(const Device& device, Group& world, Stream& stream);

// Share of the devices' peak that the model's own operations on so many tokens are. Nothing where run.peak_tflops is
// not set.
std::optional<double> model_flops_utilization(const Settings& settings, std::int64_t tokens, double seconds, int ranks);

}  // namespace orthant
