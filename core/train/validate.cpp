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
  const auto add_to = [](auto& all, const auto& more) {
    all.resize(more.size());
    std::transform(more.begin(), more.end(), all.begin(), all.begin(), std::plus<>());
  };
  add_to(sums, other.sums);
  add_to(counts, other.counts);
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
    require(of_set.counts.front() > 0, "validation set '{}' has no token to measure", set.name);
    found.sets.emplace_back(set.name, objectives_.report(of_set.sums, of_set.counts, false).loss);
    all_sets.add(of_set);
  }
  const Measured& told = source_.validation_sequences() > 0 ? held_out : all_sets;
  require(told.counts.front() > 0, "the held-out part has no token to measure");
  ObjectiveReport learned = objectives_.report(told.sums, told.counts, false);
  found.loss = learned.loss;
  found.figures = std::move(learned.figures);
  return found;
}

// Every rank makes the same number of forward passes, the last ones filled up with padding, so that a layer's exchange
// finds all its peers.
std::int64_t Trainer::passes_over(const HeldOut& set) const {
  const std::int64_t at_once = turns_of(plan_).of * shares_.front().micro_batch;
  return (set.validation_sequences() + at_once - 1) / at_once;
}

Trainer::Measured Trainer::measure(const HeldOut& set, int first_pass, ValidationRouting* routing) {
  const std::int64_t all = set.validation_sequences(), per_pass = shares_.front().micro_batch;
  const Turns turns = turns_of(plan_);
  stream_.fill(sum_storage_, 0);
  std::vector<std::int64_t> counts(objectives_.counts(), 0);
  std::int64_t valid = 0;
  auto read_pass = [&](int pass) {
    const std::int64_t first = (pass * turns.of + turns.mine) * per_pass;
    const std::int64_t real = std::clamp<std::int64_t>(all - first, 0, per_pass);
    HostBatch host;
    if (real > 0) {
      host = set.validation(first, real);
    }
    host.positions = plan_.settings().data.sequence_length;
    pad_to(host, per_pass);
    return host;
  };
  const auto context_of = [&](const DeviceBatch& batch, int, int pass) {
    return StepContext{
        .plan = plan_, .stream = stream_, .batch = batch, .sums = sums_, .micro_batch = pass, .training = false};
  };
  // A reference reads what it is compared on: as many passes at once as the largest step has micro-batches, whose
  // activations it may keep.
  const int passes = static_cast<int>(passes_over(set));
  const bool compared = objectives_.reference().measures;
  const int at_once = compared ? shares_.back().micro_batches : passes;
  RoutingTap* const training = std::exchange(sums_.tap, routing);
  for (int begin = 0; begin < passes; begin += at_once) {
    const int count = std::min(at_once, passes - begin);
    std::vector<HostBatch> hosts;
    for (int i = 0; i < count && compared; ++i) {
      hosts.push_back(read_pass(begin + i));
    }
    if (compared) {
      teacher_->begin_step(hosts, 0);
    }
    auto load_pass = [&](int pass) {
      if (compared) {
        teacher_->read(pass);
      }
      const HostBatch host = compared ? hosts[static_cast<std::size_t>(pass)] : read_pass(begin + pass);
      valid += objectives_.count(host, plan_, counts);
      return upload(host, plan_, stream_);
    };
    ValidationWork work(plan_, *model_, load_pass, context_of, {.stream = stream_, .training = false},
                        first_pass + begin, routing);
    executor_.run(forward_passes(count), work);
  }
  sums_.tap = training;
  counts.push_back(valid);
  all_reduce_values(counts, ReduceOp::sum, tokens_, stream_);
  if (objectives_.over_sequences() && counts.back() > 0) {
    counts.front() = std::max<std::int64_t>(counts.front(), 1);  // 0 in a plan, whose ranks know of no others
  }
  counts.pop_back();
  sum_over_ranks();
  std::vector<double> sums(static_cast<std::size_t>(objective_sums_.elements()));
  stream_.download(sums.data(), objective_sums_);
  return {.sums = std::move(sums), .counts = std::move(counts)};
}

}  // namespace orthant
