#include "core/train/validator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/train/micro_batches.h"
#include "core/train/model_work.h"

namespace orthant {
namespace {

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

// Passes over held-out sequences, whose routing somebody may look at.
class ValidationWork final : public ModelWork {
 public:
  struct Parts {
    StepSums& sums;
    std::function<DeviceBatch(int pass)> batch;
    int first_pass;              // of those of all sets, which are numbered through
    ValidationRouting* routing;  // or null
  };
  ValidationWork(Plan& plan, Model& model, Parts parts, Stream& stream)
      : ModelWork(plan, model, {.stream = stream, .training = false}), parts_(std::move(parts)) {}
  void load(int pass) override {
    ModelWork::load(pass);
    if (parts_.routing != nullptr) {
      parts_.routing->loaded(parts_.first_pass + pass, batch_of(pass));
    }
  }
  void unload(int pass) override {
    if (parts_.routing != nullptr) {
      parts_.routing->passed(parts_.first_pass + pass, stream_);
    }
    ModelWork::unload(pass);
  }

 protected:
  DeviceBatch batch(int pass) override { return parts_.batch(pass); }
  StepContext context(const DeviceBatch& batch, int, int pass) override {
    return {
        .plan = plan_, .stream = stream_, .batch = batch, .sums = parts_.sums, .micro_batch = pass, .training = false};
  }

 private:
  Parts parts_;
};

}  // namespace

Validator::Validator(const Parts& parts)
    : plan_(parts.plan),
      stream_(parts.stream),
      objectives_(parts.objectives),
      ranks_(parts.ranks),
      feed_(parts.feed),
      model_(parts.model),
      executor_(parts.executor),
      totals_(parts.totals),
      teacher_(parts.teacher) {}

double Validator::loss() {
  return measure_all(nullptr).loss;
}

Validation Validator::sets() {
  if (totals_.routed_layers() == 0 || !plan_.settings().run.routing_metrics) {
    return measure_all(nullptr);
  }
  if (!validated_.has_value()) {
    validated_.emplace(plan_, ranks_);
  }
  validated_->begin();
  Validation found = measure_all(&*validated_);
  found.routing = validated_->finish(stream_);
  return found;
}

void Validator::Measured::add(const Measured& other) {
  const auto add_to = [](auto& all, const auto& more) {
    all.resize(more.size());
    std::transform(more.begin(), more.end(), all.begin(), all.begin(), std::plus<>());
  };
  add_to(sums, other.sums);
  add_to(counts, other.counts);
}

Validation Validator::measure_all(ValidationRouting* routing) {
  const BatchSource& source = feed_.source();
  Validation found;
  Measured held_out, all_sets;
  int pass = 0;
  if (source.validation_sequences() > 0) {
    held_out = measure(source, pass, routing);
    pass += static_cast<int>(passes_over(source));
  }
  for (const NamedSet& set : source.sets()) {
    const Measured of_set = measure(*set.sequences, pass, routing);
    pass += static_cast<int>(passes_over(*set.sequences));
    require(of_set.counts.front() > 0, "validation set '{}' has no token to measure", set.name);
    found.sets.emplace_back(set.name, objectives_.report(of_set.sums, of_set.counts, false).loss);
    all_sets.add(of_set);
  }
  const Measured& told = source.validation_sequences() > 0 ? held_out : all_sets;
  require(!told.counts.empty() && told.counts.front() > 0, "the held-out part has no token to measure");
  ObjectiveReport learned = objectives_.report(told.sums, told.counts, false);
  found.loss = learned.loss;
  found.figures = std::move(learned.figures);
  return found;
}

// Every rank makes the same number of forward passes, the last ones filled up with padding, so that a layer's exchange
// finds all its peers.
std::int64_t Validator::passes_over(const HeldOut& set) const {
  const std::int64_t at_once = turns_of(plan_).of * feed_.first_share().micro_batch;
  return (set.validation_sequences() + at_once - 1) / at_once;
}

Validator::Measured Validator::measure(const HeldOut& set, int first_pass, ValidationRouting* routing) {
  const std::int64_t all = set.validation_sequences(), per_pass = feed_.first_share().micro_batch;
  const Turns turns = turns_of(plan_);
  totals_.begin({}, stream_);
  std::vector<std::int64_t> counts(objectives_.counts(), 0);
  std::vector<std::int64_t> valid(plan_.spaces().size(), 0);
  auto read_pass = [&](int pass) {
    const std::int64_t first = (pass * turns.of + turns.mine) * per_pass;
    const std::int64_t real = std::clamp<std::int64_t>(all - first, 0, per_pass);
    HostBatch host;
    if (real > 0) {
      host = set.validation(first, real);
    }
    pad_to(host, per_pass, plan_.spaces());
    return host;
  };
  // A reference reads what it is compared on: as many passes at once as the largest step has micro-batches, whose
  // activations it may keep.
  const int passes = static_cast<int>(passes_over(set));
  const bool compared = objectives_.reference().measures;
  const int at_once = compared ? feed_.largest_share().micro_batches : passes;
  StepSums& sums = totals_.sums();
  RoutingTap* const training = std::exchange(sums.tap, routing);
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
      objectives_.count(host, plan_, valid, counts);
      return upload(host, plan_, stream_);
    };
    ValidationWork work(plan_, model_, {sums, load_pass, first_pass + begin, routing}, stream_);
    executor_.run(forward_passes(plan_, count), work);
  }
  sums.tap = training;
  feed_.sum_counts(valid, counts);
  if (objectives_.over_sequences() && valid.front() > 0) {
    counts.front() = std::max<std::int64_t>(counts.front(), 1);  // 0 in a plan, whose ranks know of no others
  }
  totals_.sum_over_ranks(stream_);
  std::vector<double> measured(static_cast<std::size_t>(totals_.of_objectives().elements()));
  stream_.download(measured.data(), totals_.of_objectives());
  return {.sums = std::move(measured), .counts = std::move(counts)};
}

}  // namespace orthant
