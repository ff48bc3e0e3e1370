// Trainer::validate: passes forward over the held-out sequences.
#include <algorithm>
#include <array>
#include <utility>

#include "core/train/micro_batches.h"
#include "core/train/model_work.h"
#include "core/train/trainer.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

// Passes whose routing somebody may look at.
class ValidationWork final : public ModelWork {
 public:
  ValidationWork(Plan& plan, Model& model, Load load, Context context, const HookContext& finish,
                 ValidationRouting* routing)
      : ModelWork(plan, model, std::move(load), std::move(context), finish), routing_(routing) {}
  void load(int pass) override {
    ModelWork::load(pass);
    if (routing_ != nullptr) {
      routing_->loaded(pass, batch_of(pass));
    }
  }
  void unload(int pass) override {
    if (routing_ != nullptr) {
      routing_->passed(pass, stream_);
    }
    ModelWork::unload(pass);
  }

 private:
  ValidationRouting* routing_;
};

}  // namespace

double Trainer::validate() {
  return validate(nullptr);
}

double Trainer::validate(std::vector<ValidatedRouting>& routing) {
  routing.clear();
  if (routed_layers_ == 0 || !plan_.settings().run.routing_metrics) {
    return validate(nullptr);
  }
  if (!validated_.has_value()) {
    validated_.emplace(plan_, ranks_);
  }
  validated_->begin();
  const double loss = validate(&*validated_);
  routing = validated_->finish(stream_);
  return loss;
}

double Trainer::validate(ValidationRouting* routing) {
  const Range all{0, source_.validation_sequences()};
  // Ranks take turns by micro-batch. Every rank makes the same number of forward passes, the last ones filled up with
  // padding, so that a layer's exchange finds all its peers.
  const std::int64_t per_pass = share_.micro_batch, length = plan_.settings().data.sequence_length;
  std::int64_t parts = 1, mine = 0;
  for (AxisId axis : plan_.axes_of(Dim::batch, Region::embedding)) {
    const AxisSpec& spec = plan_.mesh().axes()[axis];
    if (!spec.independent) {  // each worker has weights of its own to measure, on all sequences
      mine = mine * spec.size + plan_.mesh().coordinate(axis);
      parts *= spec.size;
    }
  }
  const std::int64_t passes = (all.count + parts * per_pass - 1) / (parts * per_pass);
  stream_.fill(sum_storage_, 0);
  std::vector<std::int64_t> counted(1, 0);
  auto load_pass = [&](int pass) {
    const std::int64_t first = (pass * parts + mine) * per_pass;
    const std::int64_t real = std::clamp<std::int64_t>(all.count - first, 0, per_pass);
    HostBatch host;
    if (real > 0) {
      host = source_.validation(first, real);
    }
    host.positions = length;
    pad_to(host, per_pass);
    counted[0] += held_tokens(host, plan_).counted;
    return upload(host, plan_, stream_);
  };
  const auto context_of = [&](const DeviceBatch& batch, int, int) {
    return StepContext{.plan = plan_, .stream = stream_, .batch = batch, .sums = sums_, .training = false};
  };
  ValidationWork work(plan_, *model_, load_pass, context_of, {.stream = stream_, .training = false}, routing);
  RoutingTap* const training = std::exchange(sums_.tap, routing);
  executor_.run(forward_passes(static_cast<int>(passes)), work);
  sums_.tap = training;
  all_reduce_values(counted, ReduceOp::sum, tokens_, stream_);
  const std::array<double, 4> sums = all_sums();
  require(counted[0] > 0, "the held-out part has no token to measure");
  return sums[0] / static_cast<double>(counted[0]);
}

}  // namespace orthant
