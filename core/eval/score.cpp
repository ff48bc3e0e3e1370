#include "core/eval/score.h"

#include <algorithm>

#include "core/data/batch_builder.h"
#include "core/modules/make_device.h"
#include "core/run/saving.h"
#include "core/session/session.h"
#include "core/train/micro_batches.h"

namespace orthant {
namespace {

constexpr std::int64_t tokens_at_once = 4096;

// The model by itself: no axis divides it.
Config alone(const OpenedModel& model, std::int64_t positions) {
  Config config = model.config();
  config.plugins.clear();
  config.settings.data.sequence_length = positions;
  config.settings.memory.limit = 0;
  return config;
}

}  // namespace

struct Scorer::Rank {
  Rank(const OpenedModel& opened, std::int64_t positions, int threads, Communicator& communicator)
      : config(alone(opened, positions)),
        device(make_device(config.settings.run.device, threads)),
        stream(device->make_main_stream()),
        session(config) {
    session.plan(0, &communicator, device.get());
    model.emplace(session.plan(), *stream);
    load_weights(opened.reader(), session.plan(), model->parameters(), *stream);
    sum = device->empty(DType::f64, {1});
  }

  Config config;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Session session;
  std::optional<Model> model;
  Tensor sum;
};

Scorer::Scorer(const OpenedModel& model, std::int64_t positions, int threads, Communicator& communicator)
    : positions_(positions),
      batch_(std::max<std::int64_t>(1, tokens_at_once / positions)),
      rank_(std::make_unique<Rank>(model, positions, threads, communicator)) {}

Scorer::~Scorer() = default;

double Scorer::score(std::span<const ScoredSequence> sequences) {
  Stream& stream = *rank_->stream;
  HostBatch batch = padding_batch(0, static_cast<std::int64_t>(sequences.size()), positions_);
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    put_document(batch, static_cast<std::int64_t>(row), 0, {sequences[row].token, sequences[row].label});
  }
  const DeviceBatch loaded = upload(batch, rank_->session.plan(), stream);
  StepSums sums;
  sums.loss = rank_->sum;
  stream.fill(sums.loss, 0);
  const StepContext context{
      .plan = rank_->session.plan(), .stream = stream, .batch = loaded, .sums = sums, .training = false};
  rank_->model->forward(context, {}, 0, rank_->model->layers());
  double nats = 0;
  stream.download(&nats, sums.loss);
  stream.synchronize();
  return nats;
}

}  // namespace orthant
