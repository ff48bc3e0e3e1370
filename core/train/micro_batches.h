// The micro-batches of a step as a rank meets them: its part of some whole sequences, on the host and on the device.
#pragma once

#include "core/data/batch.h"
#include "core/layers/layer.h"

namespace orthant {

// What this rank holds of some whole sequences, on the plan's device.
DeviceBatch upload(const HostBatch& whole, const Plan& plan, Stream& stream);

// Of one micro-batch, those that this rank loads.
std::int64_t micro_batch_tokens(const Plan& plan);

// Of the tokens of `whole` that this rank holds where it is loaded: those that count in the loss, those that are not
// padding, and those that count in the loss of each depth of model.mtp_depth. With pairs of answers `counted` are the
// pairs that this rank counts, and `chosen` the tokens of its chosen answers.
struct TokenCounts {
  std::int64_t counted = 0, valid = 0, chosen = 0;
  std::vector<std::int64_t> ahead = {};
};
TokenCounts held_tokens(const HostBatch& whole, const Plan& plan);

// Fills up with sequences of padding.
void pad_to(HostBatch& host, std::int64_t sequences);

}  // namespace orthant
