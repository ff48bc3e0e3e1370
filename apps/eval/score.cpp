#include "apps/eval/score.h"

#include <orthant/gate.h>

#include <algorithm>

#include "core/arch/links.h"
#include "core/data/batch_builder.h"

namespace orthant {
namespace {

constexpr std::int64_t tokens_at_once = 4096;

std::int64_t group_of(const Config& config, std::int64_t positions) {
  const Settings& s = config.settings;
  if (s.moe.experts == 0 || (s.moe.capacity_factor == 0 && !gate_of(s).config(s).experts_choose)) {
    return 1;
  }
  return s.moe.group_tokens.or_else(positions);
}

// Where a model has several token spaces a group without a size is a sequence of each.
Config with_group(Config config, std::int64_t tokens) {
  if (tokens == 1 || spaces_of(config.settings).size() == 1) {
    config.settings.moe.group_tokens = tokens;
  }
  return config;
}

std::int64_t source_positions_of(const Config& config, std::int64_t group_tokens) {
  const std::vector<Space> spaces = spaces_of(config.settings);
  return spaces.size() == 1 || group_tokens == 1 ? 0 : spaces[1].positions;
}

}  // namespace

Scorer::Scorer(const OpenedModel& model, std::int64_t positions, int threads, Communicator& communicator)
    : positions_(positions),
      group_tokens_(group_of(model.config(), positions)),
      sequences_a_group_(std::max<std::int64_t>(1, group_tokens_ / positions)),
      source_positions_(source_positions_of(model.config(), group_tokens_)),
      model_(with_group(model.config(), group_tokens_), model.reader(), positions, threads, communicator) {}

std::int64_t Scorer::batch(std::int64_t longest) const {
  const std::int64_t sequences = std::max<std::int64_t>(1, tokens_at_once / row(longest));
  return (sequences + sequences_a_group_ - 1) / sequences_a_group_ * sequences_a_group_;
}

void Scorer::put_sources(HostBatch& batch, std::span<const ScoredSequence> sequences) const {
  if (spaces_of(model_.settings()).size() == 1) {
    return;
  }
  std::int64_t positions = source_positions_;
  for (const ScoredSequence& sequence : sequences) {
    positions = std::max(positions, static_cast<std::int64_t>(sequence.source.size()));
  }
  batch.spaces = {padding_batch(0, batch.sequences, positions)};
  HostBatch& sources = batch.spaces.front();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    put_document(sources, static_cast<std::int64_t>(i), 0, {.token = sequences[i].source});
  }
  for (std::size_t i = 0; i < sources.index.size(); ++i) {
    sources.index[i] = static_cast<std::int64_t>(i) % positions;
  }
}

std::vector<double> Scorer::score(std::span<const ScoredSequence> sequences) {
  std::size_t longest = 0;
  for (const ScoredSequence& sequence : sequences) {
    longest = std::max(longest, sequence.token.size());
  }
  const std::int64_t count = static_cast<std::int64_t>(sequences.size());
  const std::int64_t rows = (count + sequences_a_group_ - 1) / sequences_a_group_ * sequences_a_group_;
  const std::int64_t positions = row(static_cast<std::int64_t>(longest));
  HostBatch batch = padding_batch(0, rows, positions);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    put_document(batch, static_cast<std::int64_t>(i), 0, {sequences[i].token, sequences[i].label});
  }
  // A gate that draws does so by a token's number: it is the same in any company.
  for (std::size_t i = 0; i < batch.index.size(); ++i) {
    batch.index[i] = static_cast<std::int64_t>(i) % (sequences_a_group_ * positions);
  }
  put_sources(batch, sequences);
  Stream& s = model_.stream();
  StepSums sums;
  sums.loss = s.device().empty(DType::f64, {1});
  sums.token_loss = s.device().empty(DType::f32, {rows * positions});
  s.fill(sums.loss, 0);
  model_.forward(batch, model_.head() + 1, sums);
  const Tensor nats = s.device().empty(DType::f64, {count});
  s.fill(nats, 0);
  for (std::int64_t i = 0; i < count; ++i) {
    // Without the padding, whose zeros would order the sum in another way.
    const std::int64_t own = static_cast<std::int64_t>(sequences[static_cast<std::size_t>(i)].token.size());
    s.sum(nats.rows(i, 1), sums.token_loss.rows(i * positions, own));
  }
  std::vector<double> host(sequences.size());
  s.download(host.data(), nats);
  s.synchronize();
  return host;
}

}  // namespace orthant
