#include "core/train/micro_batches.h"

#include <orthant/gate.h>

#include <algorithm>

#include "core/objectives/kinds.h"
#include "core/plan/batch_share.h"

namespace orthant {
namespace {

// Where the model has a window, no token sees further back than it.
HostBatch with_window(HostBatch whole, std::int64_t window) {
  for (std::size_t i = 0; window > 0 && i < whole.first.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i) % whole.positions;
    whole.first[i] = std::max(whole.first[i], static_cast<std::int32_t>(place - window + 1));
  }
  return whole;
}

std::int64_t valid_of(const HostBatch& host) {
  return std::count_if(host.valid.begin(), host.valid.end(), [](std::uint8_t v) { return v != 0; });
}

}  // namespace

DeviceBatch upload(const HostBatch& given, const Plan& plan, Stream& stream) {
  const ModelSettings& model = plan.settings().model;
  const HostBatch whole = with_window(given, model.sliding_window);
  Device& device = plan.device();
  const MemoryScope as(device, MemoryKind::other);
  const HostBatch host = held_rows(whole, plan), core = held_rows(whole, plan, Region::attention_core);
  DeviceBatch batch;
  batch.sequences = host.sequences;
  batch.positions = host.positions;
  auto put = [&](DType dtype, const auto& values) {
    Tensor t = device.empty(dtype, {static_cast<std::int64_t>(values.size())});
    stream.upload(t, values.data());
    return t;
  };
  batch.token = put(DType::i32, host.token);
  batch.label = put(DType::i32, host.label);
  batch.position = put(DType::i32, host.position);
  batch.valid = put(DType::u8, host.valid);
  batch.index = put(DType::i64, host.index);
  batch.valid_count = valid_of(host);
  batch.core_positions = core.positions;
  // Every rank decides by the whole sequences, so that all members of a group make the same calls.
  const auto put_first = [&](const HostBatch& of_all, const std::vector<std::int32_t>& held) {
    const bool matters = std::any_of(of_all.first.begin(), of_all.first.end(), [](std::int32_t f) { return f != 0; });
    return matters ? put(DType::i32, held) : Tensor();
  };
  batch.core_first = put_first(whole, core.first);
  if (model.full_attention_every > 0) {
    batch.core_first_full = put_first(given, held_rows(given, plan, Region::attention_core).first);
  }
  for (const Objective* objective : objectives_of(plan.settings())) {
    batch.of_objectives.push_back(objective->upload(given, plan, stream));  // whose documents no window cuts
  }
  batch.whole_valid = put(DType::u8, whole.valid);
  batch.whole_index = put(DType::i64, whole.index);
  const Settings& settings = plan.settings();
  if (settings.moe.experts > 0 && gate_of(settings).reads_tokens(settings.moe)) {
    batch.whole_token = put(DType::i32, whole.token);
  }
  return batch;
}

std::int64_t micro_batch_tokens(const Plan& plan) {
  std::int64_t positions = 0;
  for (const Range& run : plan.positions(Region::embedding, plan.mesh().rank())) {
    positions += run.count;
  }
  return largest_share(plan).micro_batch * positions;
}

void pad_to(HostBatch& host, std::int64_t sequences) {
  const std::size_t tokens = static_cast<std::size_t>(sequences * host.positions);
  host.sequences = sequences;
  host.token.resize(tokens, 0);
  host.label.resize(tokens, -1);
  host.position.resize(tokens, 0);
  host.first.resize(tokens, 0);
  host.valid.resize(tokens, 0);
  host.index.resize(tokens, 0);
}

}  // namespace orthant
