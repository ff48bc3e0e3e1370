#include "core/eval/score.h"

#include <algorithm>

#include "core/data/batch_builder.h"

namespace orthant {
namespace {

constexpr std::int64_t tokens_at_once = 4096;

}  // namespace

Scorer::Scorer(const OpenedModel& model, std::int64_t positions, int threads, Communicator& communicator)
    : positions_(positions),
      batch_(std::max<std::int64_t>(1, tokens_at_once / positions)),
      model_(model.config(), model.reader(), positions, threads, communicator) {
  sums_.loss = model_.device().empty(DType::f64, {1});
}

double Scorer::score(std::span<const ScoredSequence> sequences) {
  HostBatch batch = padding_batch(0, static_cast<std::int64_t>(sequences.size()), positions_);
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    put_document(batch, static_cast<std::int64_t>(row), 0, {sequences[row].token, sequences[row].label});
  }
  model_.stream().fill(sums_.loss, 0);
  model_.forward(batch, model_.layers(), sums_);
  double nats = 0;
  model_.stream().download(&nats, sums_.loss);
  model_.stream().synchronize();
  return nats;
}

}  // namespace orthant
