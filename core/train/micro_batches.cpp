#include "core/train/micro_batches.h"

#include <orthant/gate.h>

#include <algorithm>

#include "core/data/batch_builder.h"
#include "core/data/tokens_ahead.h"
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

HostBatch held_in(const HostBatch& whole, const Plan& plan, Region region) {
  // Where nothing divides positions, a batch may have fewer than the plan's sequences.
  if (plan.axes_of(Dim::position, region).empty()) {
    return whole;
  }
  std::vector<PositionRun> runs;
  for (const Range& run : plan.positions(region, plan.mesh().rank())) {
    runs.push_back({run.begin, run.count});
  }
  return take_positions(whole, runs);
}

std::int64_t counted_of(const HostBatch& held) {
  return std::count_if(held.label.begin(), held.label.end(), [](std::int32_t label) { return label >= 0; });
}

std::int64_t valid_of(const HostBatch& host) {
  return std::count_if(host.valid.begin(), host.valid.end(), [](std::uint8_t v) { return v != 0; });
}

// A pair's sequence has two documents, the chosen answer first, each with the prompt before it.
std::vector<std::int32_t> answers_of(const HostBatch& held) {
  std::vector<std::int32_t> answers(held.label.size(), -1);
  for (std::size_t t = 0; t < answers.size(); ++t) {
    const std::int32_t sequence = static_cast<std::int32_t>(static_cast<std::int64_t>(t) / held.positions);
    answers[t] = held.label[t] < 0 ? -1 : 2 * sequence + (held.first[t] == 0 ? 0 : 1);
  }
  return answers;
}

// One of the ranks that hold parts of the same sequences.
bool counts_sequences(const Plan& plan) {
  const std::vector<AxisId> axes = plan.axes_of(Dim::position, Region::embedding);
  return std::all_of(axes.begin(), axes.end(), [&](AxisId axis) { return plan.mesh().coordinate(axis) == 0; });
}

struct PairCounts {
  std::int64_t pairs = 0, chosen_tokens = 0;
};
PairCounts held_pairs(const HostBatch& whole, const HostBatch& held, const Plan& plan) {
  PairCounts counts;
  for (const std::int32_t answer : answers_of(held)) {
    counts.chosen_tokens += answer >= 0 && answer % 2 == 0 ? 1 : 0;
  }
  for (std::int64_t s = 0; counts_sequences(plan) && s < whole.sequences; ++s) {
    const auto row = whole.label.begin() + s * whole.positions;
    counts.pairs += std::any_of(row, row + whole.positions, [](std::int32_t label) { return label >= 0; }) ? 1 : 0;
  }
  return counts;
}

}  // namespace

DeviceBatch upload(const HostBatch& given, const Plan& plan, Stream& stream) {
  const ModelSettings& model = plan.settings().model;
  const HostBatch whole = with_window(given, model.sliding_window);
  Device& device = plan.device();
  const MemoryScope as(device, MemoryKind::other);
  const HostBatch host = held_in(whole, plan, Region::embedding), core = held_in(whole, plan, Region::attention_core);
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
  if (learns_preferences(plan.settings())) {
    batch.answer = answers_of(held_in(given, plan, Region::embedding));  // whose documents are not cut by a window
  }
  batch.core_positions = core.positions;
  // Every rank decides by the whole sequences, so that all members of a group make the same calls.
  const auto put_first = [&](const HostBatch& of_all, const std::vector<std::int32_t>& held) {
    const bool matters = std::any_of(of_all.first.begin(), of_all.first.end(), [](std::int32_t f) { return f != 0; });
    return matters ? put(DType::i32, held) : Tensor();
  };
  batch.core_first = put_first(whole, core.first);
  if (model.full_attention_every > 0) {
    batch.core_first_full = put_first(given, held_in(given, plan, Region::attention_core).first);
  }
  for (std::int64_t depth = 1; depth <= model.mtp_depth; ++depth) {
    const HostBatch further = held_in(tokens_ahead(given, depth), plan, Region::embedding);
    batch.ahead.push_back({.token = put(DType::i32, further.token), .label = put(DType::i32, further.label)});
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

TokenCounts held_tokens(const HostBatch& whole, const Plan& plan) {
  const HostBatch held = held_in(whole, plan, Region::embedding);
  TokenCounts counts{.counted = counted_of(held), .valid = valid_of(held)};
  for (std::int64_t depth = 1; depth <= plan.settings().model.mtp_depth; ++depth) {
    counts.ahead.push_back(counted_of(held_in(tokens_ahead(whole, depth), plan, Region::embedding)));
  }
  if (learns_preferences(plan.settings())) {
    const PairCounts of_pairs = held_pairs(whole, held, plan);
    counts.counted = of_pairs.pairs;
    counts.chosen = of_pairs.chosen_tokens;
  }
  return counts;
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
