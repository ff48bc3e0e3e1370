// The micro-batches of a step as a rank meets them: its part of some whole sequences, on the host and on the device.
#pragma once

#include "core/data/batch.h"
#include "core/layers/layer.h"

namespace orthant {

// What this rank holds of some whole sequences, on the plan's device.
DeviceBatch upload(const HostBatch& whole, const Plan& plan, Stream& stream);

// Fills up with sequences of padding, in every token space.
void pad_to(HostBatch& host, std::int64_t sequences, const std::vector<Space>& spaces);

}  // namespace orthant
