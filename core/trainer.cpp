#include "core/trainer.h"

#include <algorithm>
#include <cmath>

#include "core/data/batch_builder.h"
#include "core/layers/parameters.h"
#include "core/optimizer.h"
#include "core/run/host_collectives.h"
#include "parallel/gradient_rule.h"

namespace orthant {

double StepReport::drop_rate() const {
  std::int64_t choices = 0, dropped = 0;
  for (const LayerCounters& layer : layers) {
    choices += layer.choices;
    dropped += layer.dropped_by_capacity + layer.dropped_by_chance;
  }
  return choices == 0 ? 0 : static_cast<double>(dropped) / static_cast<double>(choices);
}

double StepReport::expert_load_max_over_mean() const {
  double worst = layers.empty() ? 0 : 1;
  for (const LayerCounters& layer : layers) {
    std::int64_t most = 0, all = 0;
    for (std::int64_t load : layer.load) {
      most = std::max(most, load);
      all += load;
    }
    if (all > 0) {
      worst = std::max(worst,
                       static_cast<double>(most) * static_cast<double>(layer.load.size()) / static_cast<double>(all));
    }
  }
  return worst;
}

namespace {

// The ranks whose tokens are different parts of one global batch.
std::vector<int> token_ranks(const Plan& plan) {
  return plan.sum_members(ParamSpec{.name = "tokens", .global = {1}, .region = Region::embedding});
}

}  // namespace

Trainer::Trainer(Plan& plan, Stream& stream, const BatchSource& source)
    : plan_(plan),
      stream_(stream),
      source_(source),
      share_(batch_share(plan)),
      world_(plan.mesh().world_group("gradient norm")),
      tokens_(plan.mesh().group_of("tokens", token_ranks(plan))),
      model_(std::make_unique<Model>(plan, stream)) {
  Device& device = plan.device();
  sum_storage_ = device.empty(DType::f64, {3});
  sums_.loss = sum_storage_.slice(0, {1});
  sums_.balance = sum_storage_.slice(1, {1});
  sums_.z = sum_storage_.slice(2, {1});
  sum_squares_ = device.empty(DType::f64, {1});
  factor_ = device.empty(DType::f32, {1});
  for (int block = 0; block < plan.settings().model.layers; ++block) {
    routed_layers_ += block_has_experts(plan.settings(), block) ? 1 : 0;
  }
}

Trainer::~Trainer() = default;

namespace {

HostBatch held_in(const HostBatch& whole, const Plan& plan, Region region) {
  std::vector<PositionRun> runs;
  for (const Range& run : plan.positions(region, plan.mesh().rank())) {
    runs.push_back({run.begin, run.count});
  }
  return take_positions(whole, runs);
}

}  // namespace

DeviceBatch Trainer::upload(const HostBatch& whole) {
  Device& device = plan_.device();
  const HostBatch host = held_in(whole, plan_, Region::embedding), core = held_in(whole, plan_, Region::attention_core);
  DeviceBatch batch;
  batch.sequences = host.sequences;
  batch.positions = host.positions;
  auto put = [&](DType dtype, const auto& values) {
    Tensor t = device.empty(dtype, {static_cast<std::int64_t>(values.size())});
    stream_.upload(t, values.data());
    return t;
  };
  batch.token = put(DType::i32, host.token);
  batch.label = put(DType::i32, host.label);
  batch.position = put(DType::i32, host.position);
  batch.valid = put(DType::u8, host.valid);
  batch.index = put(DType::i64, host.index);
  auto count_valid = [](const HostBatch& of) {
    return std::count_if(of.valid.begin(), of.valid.end(), [](std::uint8_t v) { return v != 0; });
  };
  batch.valid_count = count_valid(host);
  batch.core_positions = core.positions;
  // Every rank decides by the whole sequences, so that all members of a group make the same calls.
  if (std::any_of(whole.first.begin(), whole.first.end(), [](std::int32_t first) { return first != 0; })) {
    batch.core_first = put(DType::i32, core.first);
  }
  batch.whole_valid = put(DType::u8, whole.valid);
  batch.whole_index = put(DType::i64, whole.index);
  batch.whole_valid_count = count_valid(whole);
  return batch;
}

namespace {

std::int64_t labels_of(const HostBatch& host) {
  return std::count_if(host.label.begin(), host.label.end(), [](std::int32_t label) { return label >= 0; });
}

// Fills up with sequences of padding.
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

}  // namespace

Trainer::Load Trainer::load(std::int64_t step) {
  Load load;
  std::vector<std::int64_t> counts(2, 0);
  for (int m = 0; m < share_.micro_batches; ++m) {
    const HostBatch host = source_.train(step, share_.first + m * share_.micro_batch, share_.micro_batch);
    load.micro_batches.push_back(upload(host));
    const HostBatch held = held_in(host, plan_, Region::embedding);
    counts[0] += labels_of(held);
    counts[1] += load.micro_batches.back().valid_count;
  }
  all_reduce_values(counts, ReduceOp::sum, tokens_, stream_);
  load.counted = counts[0];
  load.valid = counts[1];
  require(load.counted > 0, "step {} has no token that counts in the loss", step);
  return load;
}

StepContext Trainer::context(const Load& load, const DeviceBatch& batch, std::int64_t step, int micro_batch) {
  const MoeSettings& moe = plan_.settings().moe;
  const double valid = static_cast<double>(std::max<std::int64_t>(load.valid, 1));
  return {.plan = plan_,
          .stream = stream_,
          .batch = batch,
          .sums = sums_,
          .step = static_cast<std::uint32_t>(step),
          .micro_batch = micro_batch,
          .training = true,
          .loss_scale = static_cast<float>(1.0 / static_cast<double>(load.counted)),
          .aux_scale = static_cast<float>(moe.aux_loss / valid),
          .z_scale = static_cast<float>(moe.z_loss / valid)};
}

void Trainer::run(const Load& load, std::int64_t step) {
  model_->begin_step();
  stream_.fill(sum_storage_, 0);
  sums_.layers.clear();
  const int last = share_.micro_batches - 1;
  for (const Instr& instr : plan_.schedule().steps(0, 1, share_.micro_batches)) {
    const DeviceBatch& batch = load.micro_batches[static_cast<std::size_t>(instr.micro_batch)];
    const StepContext ctx = context(load, batch, step, instr.micro_batch);
    switch (instr.op) {
      case Op::forward: model_->forward(ctx, {}, 0, model_->layers()); break;
      case Op::backward: model_->backward(ctx, {}, 0, model_->layers(), instr.micro_batch == last); break;
      case Op::finish_grads: finish_gradients(model_->parameters(), plan_, stream_); break;
      case Op::load:
      case Op::step: break;  // micro-batches are loaded at the step's start; the update is apply()
      default: fail("the schedule sends between stages, but this build runs one stage");
    }
  }
}

void Trainer::reduce_counters(StepReport& report) {
  if (routed_layers_ == 0) {
    return;
  }
  // All routed layers of the model, whichever stage holds them.
  const std::int64_t experts = plan_.settings().moe.experts;
  const bool counts = plan_.counts_tokens(Region::router, true);
  std::vector<std::int64_t> flat;
  for (int block = 0; block < plan_.settings().model.layers; ++block) {
    if (!block_has_experts(plan_.settings(), block)) {
      continue;
    }
    StepSums none;
    const LayerCounters layer = (counts ? sums_ : none).of(block + 1, experts);
    flat.insert(flat.end(), layer.load.begin(), layer.load.end());
    flat.insert(flat.end(), layer.kept.begin(), layer.kept.end());
    flat.insert(flat.end(), {layer.choices, layer.dropped_by_capacity, layer.dropped_by_chance});
    report.layers.push_back({.layer = block + 1, .load = {}, .kept = {}});
  }
  all_reduce_values(flat, ReduceOp::sum, world_, stream_);
  auto next = flat.begin();
  for (LayerCounters& layer : report.layers) {
    layer.load.assign(next, next + experts);
    next += experts;
    layer.kept.assign(next, next + experts);
    next += experts;
    layer.choices = *next++;
    layer.dropped_by_capacity = *next++;
    layer.dropped_by_chance = *next++;
  }
}

std::array<double, 3> Trainer::world_sums() {
  if (!plan_.counts_tokens(Region::head, false)) {
    stream_.fill(sums_.loss, 0);
  }
  if (!plan_.counts_tokens(Region::router, true)) {
    stream_.fill(sums_.balance, 0);
    stream_.fill(sums_.z, 0);
  }
  if (world_.size() > 1) {
    world_.all_reduce(sum_storage_, ReduceOp::sum, stream_);
  }
  std::array<double, 3> sums{};
  stream_.download(sums.data(), sum_storage_);
  return sums;
}

StepReport Trainer::report(const Load& load, std::int64_t step) {
  StepReport report;
  report.step = step;
  report.lr = learning_rate(plan_.settings().optimizer, plan_.settings().run.steps, step);
  report.tokens = load.valid;
  double squares = 0;
  const std::array<double, 3> sums = world_sums();
  stream_.download(&squares, sum_squares_);
  const double routed = static_cast<double>(std::max(routed_layers_, 1)) * static_cast<double>(load.valid);
  report.loss = sums[0] / static_cast<double>(load.counted);
  report.aux_loss = sums[1] / routed;
  report.z_loss = sums[2] / routed;
  report.grad_norm = std::sqrt(squares);
  reduce_counters(report);
  return report;
}

StepReport Trainer::gradients(std::int64_t step) {
  const Load loaded = load(step);
  run(loaded, step);
  gradient_sum_squares(sum_squares_, model_->parameters(), world_, stream_);
  StepReport result = report(loaded, step);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    explain_not_finite(loaded, result);
  }
  return result;
}

void Trainer::apply(std::int64_t step) {
  stream_.clip_factor(factor_, sum_squares_, static_cast<float>(plan_.settings().optimizer.clip_grad_norm));
  optimizer_step(model_->parameters(), plan_, step, factor_, stream_);
}

StepReport Trainer::step(std::int64_t step) {
  StepReport result = gradients(step);
  apply(step);
  return result;
}

double Trainer::validate() {
  const Range all{0, source_.validation_sequences()};
  // Ranks take turns by micro-batch. Every rank makes the same number of forward passes, the last ones filled up with
  // padding, so that a layer's exchange finds all its peers.
  const std::int64_t per_pass = share_.micro_batch, length = plan_.settings().data.sequence_length;
  std::int64_t ranks = 1, mine = 0;
  for (AxisId axis : plan_.axes_of(Dim::batch, Region::embedding)) {
    const int size = plan_.mesh().axes()[static_cast<std::size_t>(axis)].size;
    mine = mine * size + plan_.mesh().coordinate(axis);
    ranks *= size;
  }
  const std::int64_t passes = (all.count + ranks * per_pass - 1) / (ranks * per_pass);
  stream_.fill(sum_storage_, 0);
  std::vector<std::int64_t> counted(1, 0);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t first = (pass * ranks + mine) * per_pass;
    const std::int64_t real = std::clamp<std::int64_t>(all.count - first, 0, per_pass);
    HostBatch host;
    if (real > 0) {
      host = source_.validation(first, real);
    }
    host.positions = length;
    pad_to(host, per_pass);
    counted[0] += labels_of(held_in(host, plan_, Region::embedding));
    const DeviceBatch batch = upload(host);
    StepContext ctx{.plan = plan_, .stream = stream_, .batch = batch, .sums = sums_, .training = false};
    model_->forward(ctx, {}, 0, model_->layers());
  }
  all_reduce_values(counted, ReduceOp::sum, tokens_, stream_);
  const std::array<double, 3> sums = world_sums();
  require(counted[0] > 0, "the held-out part has no token to measure");
  return sums[0] / static_cast<double>(counted[0]);
}

void Trainer::explain_not_finite(const Load& load, const StepReport& report) {
  // Once more through the step, layer by layer, to find where the first value that is not finite appears.
  constexpr std::int64_t none = 1 << 20;
  std::int64_t first_layer = none;
  auto finite_value = [&](const Tensor& f64) {
    double value = 0;
    stream_.download(&value, f64);
    return std::isfinite(value);
  };
  auto finite = [&](const Tensor& t) {
    stream_.fill(sum_squares_, 0);
    stream_.sum_squares(sum_squares_, t);
    return finite_value(sum_squares_);
  };
  for (int m = 0; m < share_.micro_batches; ++m) {
    StepContext ctx = context(load, load.micro_batches[static_cast<std::size_t>(m)], report.step, m);
    ctx.training = false;
    Tensor x;
    for (int layer = 0; layer < model_->layers(); ++layer) {
      stream_.fill(sums_.loss, 0);
      x = model_->forward(ctx, x, layer, layer + 1);
      if (layer < first_layer && !(x.defined() ? finite(x) : finite_value(sums_.loss))) {  // the head returns no x
        first_layer = layer;
      }
    }
  }
  std::vector<std::int64_t> found(static_cast<std::size_t>(world_.size()), 0);
  found[static_cast<std::size_t>(world_.rank())] = first_layer;
  all_reduce_values(found, ReduceOp::sum, world_, stream_);
  const auto worst = std::min_element(found.begin(), found.end());
  const int last = model_->layers() - 1;
  auto name = [&](std::int64_t layer) {
    return layer == 0 ? std::string("the embedding") : layer == last ? "the head" : fmt::format("layer {}", layer - 1);
  };
  const std::string what =
      fmt::format("step {} is not applied: loss {}, gradient norm {}", report.step + 1, report.loss, report.grad_norm);
  if (*worst != none) {
    fail("{}. The first value that is not finite leaves {} on rank {}, in the forward pass", what, name(*worst),
         worst - found.begin());
  }
  // The backward pass comes to the last layers first, so the latest layer is where it began.
  std::fill(found.begin(), found.end(), 0);  // 1 + twice the latest layer, + 1 for its experts; 0: all are finite
  std::int64_t& mine = found[static_cast<std::size_t>(world_.rank())];
  for (const auto& group : parameters().groups()) {
    if (!finite(group->owned_grad)) {
      mine = std::max<std::int64_t>(mine, 1 + 2 * group->layer + (group->experts ? 1 : 0));
    }
  }
  all_reduce_values(found, ReduceOp::sum, world_, stream_);
  const auto latest = std::max_element(found.begin(), found.end());
  require(*latest > 0, "{}. Every layer's output and gradient is finite by itself: their sum overflows", what);
  fail("{}. The forward pass is finite; the backward pass first overflows in the gradients of {}{} on rank {}", what,
       name((*latest - 1) / 2), (*latest - 1) % 2 == 1 ? " experts" : "", latest - found.begin());
}

}  // namespace orthant
