// The micro-batches of a step as a rank meets them: its part of some whole sequences, on the host and on the device.
#pragma once

#include "core/data/batch.h"
#include "core/layers/layer.h"

namespace orthant {

// What this rank holds of some whole sequences, on the plan's device.
DeviceBatch upload(const HostBatch& whole, const Plan& plan, Stream& stream);

// Of one micro-batch, those that this rank loads.
std::int64_t micro_batch_tokens(const Plan& plan);

// Fills up with sequences of padding.
void pad_to(HostBatch& host, std::int64_t sequences);

}  // namespace orthant
