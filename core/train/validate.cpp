// Trainer::validate: passes forward over the held-out sequences, and over those of each validation set.
#include <algorithm>
#include <functional>
#include <utility>

#include "core/train/micro_batches.h"
#include "core/train/model_work.h"
#include "core/train/trainer.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

// Passes whose routing somebody may look at. first_pass: of those of all sets, which are numbered through.
class ValidationWork final : public ModelWork {
 public:
  ValidationWork(Plan& plan, Model& model, Load load, Context context, const HookContext& finish, int first_pass,
                 ValidationRouting* routing)
      : ModelWork(plan, model, std::move(load), std::move(context), finish),
        first_pass_(first_pass),
        routing_(routing) {}
  void load(int pass) override {
    ModelWork::load(pass);
    if (routing_ != nullptr) {
      routing_->loaded(first_pass_ + pass, batch_of(pass));
    }
  }
  void unload(int pass) override {
    if (routing_ != nullptr) {
      routing_->passed(first_pass_ + pass, stream_);
    }
    ModelWork::unload(pass);
  }

 private:
  int first_pass_;
  ValidationRouting* routing_;
};

// Ranks take turns by micro-batch.
struct Turns {
  std::int64_t of = 1, mine = 0;
};

Turns turns_of(const Plan& plan) {
  Turns turns;
  for (AxisId axis : plan.axes_of(Dim::batch, Region::embedding)) {
    const AxisSpec& spec = plan.mesh().axes()[axis];
    if (!spec.independent) {  // each worker has weights of its own to measure, on all sequences
      turns.mine = turns.mine * spec.size + plan.mesh().coordinate(axis);
      turns.of *= spec.size;
    }
  }
  return turns;
}

}  // namespace

double Trainer::validate() {
  return validate(nullptr).loss;
}

Validation Trainer::validate_sets() {
  if (routed_layers_ == 0 || !plan_.settings().run.routing_metrics) {
    return validate(nullptr);
  }
  if (!validated_.has_value()) {
    validated_.emplace(plan_, ranks_);
  }
  validated_->begin();
  Validation found = validate(&*validated_);
  found.routing = validated_->finish(stream_);
  return found;
}

void Trainer::Measured::add(const Measured& other) {
  sum += other.sum;
  counted += other.counted;
  mtp_sums.resize(other.mtp_sums.size());
  mtp_counted.resize(other.mtp_counted.size());
  for (std::size_t k = 0; k < mtp_sums.size(); ++k) {
    mtp_sums[k] += other.mtp_sums[k];
    mtp_counted[k] += other.mtp_counted[k];
  }
}

Validation Trainer::validate(ValidationRouting* routing) {
  Validation found;
  Measured held_out, all_sets;
  int pass = 0;
  if (source_.validation_sequences() > 0) {
    held_out = measure(source_, pass, routing);
    pass += static_cast<int>(passes_over(source_));
  }
  for (const NamedSet& set : source_.sets()) {
    const Measured of_set = measure(*set.sequences, pass, routing);
    pass += static_cast<int>(passes_over(*set.sequences));
    require(of_set.counted > 0, "validation set '{}' has no token to measure", set.name);
    found.sets.emplace_back(set.name, of_set.sum / static_cast<double>(of_set.counted));
    all_sets.add(of_set);
  }
  const Measured& told = source_.validation_sequences() > 0 ? held_out : all_sets;
  require(told.counted > 0, "the held-out part has no token to measure");
  found.loss = told.sum / static_cast<double>(told.counted);
  found.mtp_loss = mtp_loss(told.mtp_sums, told.mtp_counted);
  return found;
}

// Every rank makes the same number of forward passes, the last ones filled up with padding, so that a layer's exchange
// finds all its peers.
std::int64_t Trainer::passes_over(const HeldOut& set) const {
  const std::int64_t at_once = turns_of(plan_).of * share_.micro_batch;
  return (set.validation_sequences() + at_once - 1) / at_once;
}

Trainer::Measured Trainer::measure(const HeldOut& set, int first_pass, ValidationRouting* routing) {
  const std::int64_t all = set.validation_sequences(), per_pass = share_.micro_batch;
  const Turns turns = turns_of(plan_);
  stream_.fill(sum_storage_, 0);
  std::vector<std::int64_t> counted(1 + static_cast<std::size_t>(plan_.settings().model.mtp_depth), 0);
  auto load_pass = [&](int pass) {
    const std::int64_t first = (pass * turns.of + turns.mine) * per_pass;
    const std::int64_t real = std::clamp<std::int64_t>(all - first, 0, per_pass);
    HostBatch host;
    if (real > 0) {
      host = set.validation(first, real);
    }
    host.positions = plan_.settings().data.sequence_length;
    pad_to(host, per_pass);
    const TokenCounts held = held_tokens(host, plan_);
    counted[0] += held.counted;
    std::transform(held.ahead.begin(), held.ahead.end(), counted.begin() + 1, counted.begin() + 1, std::plus<>());
    return upload(host, plan_, stream_);
  };
  const auto context_of = [&](const DeviceBatch& batch, int, int) {
    return StepContext{.plan = plan_, .stream = stream_, .batch = batch, .sums = sums_, .training = false};
  };
  ValidationWork work(plan_, *model_, load_pass, context_of, {.stream = stream_, .training = false}, first_pass,
                      routing);
  RoutingTap* const training = std::exchange(sums_.tap, routing);
  executor_.run(forward_passes(static_cast<int>(passes_over(set))), work);
  sums_.tap = training;
  all_reduce_values(counted, ReduceOp::sum, tokens_, stream_);
  const std::vector<double> sums = all_sums();
  return {.sum = sums[0],
          .counted = counted[0],
          .mtp_sums = {sums.begin() + main_sums, sums.end()},
          .mtp_counted = {counted.begin() + 1, counted.end()}};
}

}  // namespace orthant
