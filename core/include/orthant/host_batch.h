// HostBatch: some sequences of the global batch, as the loader hands them to a rank.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/abi/objective.h>

namespace orthant {

// All vectors but `value` have sequences * positions entries, sequence-major.
struct HostBatch {
  std::int64_t sequences = 0;
  std::int64_t positions = 0;
  std::vector<std::int32_t> token;     // id in [0, vocabulary)
  std::vector<std::int32_t> label;     // the next token's id; -1: does not count in the loss
  std::vector<std::int32_t> position;  // within its document (restarts in packed documents)
  std::vector<std::int32_t> first;     // position in the sequence of the first token of its document
  std::vector<std::uint8_t> valid;     // 0: padding
  std::vector<std::int64_t> index;     // global token index in the step: global sequence * positions + position
  // Numbers of each token beside its id, such as the pixels of a patch: [tokens, columns].
  std::int64_t columns = 0;
  std::vector<float> value = {};
  // The same sequences in the model's further token spaces (Plan::spaces), in their order. Document n of a sequence
  // there stands beside document n here.
  std::vector<HostBatch> spaces = {};
};

}  // namespace orthant
