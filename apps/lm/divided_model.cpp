#include "apps/lm/divided_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "apps/lm/row_count.h"
#include "apps/lm/turned_weights.h"
#include "core/arch/decoder.h"
#include "core/layers/vocabulary_loss.h"
#include "core/modules/make_device.h"
#include "core/plan/keeper_chain.h"
#include "core/plan/schedule_check.h"
#include "core/run/saving.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

constexpr std::int64_t logits_at_once = std::int64_t{1} << 22;

// Through the pieces of a stage up to the head, which nobody's loss is behind.
class PassWork final : public StageWork {
 public:
  PassWork(const Plan& plan, Model& model, const StepContext& ctx) : plan_(plan), model_(model), ctx_(ctx) {}

  void load(int) override {}
  void unload(int) override {}
  Bundle forward(int chunk, int, Bundle x) override {
    const auto [first, last] = plan_.layers_of_chunk(chunk);
    x_ = model_.forward(ctx_, std::move(x), first, std::min(last, model_.head()));
    return x_;
  }
  Bundle backward(int, int, Bundle, bool) override { fail("generation has no backward pass"); }
  void finish_grads() override {}

  const Tensor& x() const { return x_.front(); }  // of the last piece

 private:
  const Plan& plan_;
  Model& model_;
  const StepContext& ctx_;
  Bundle x_;
};

// Rows that every region's axes can cut.
std::int64_t row_multiple_of(const Plan& plan) {
  std::int64_t all = 1;
  for (const Region region : {Region::embedding, Region::norm, Region::attention, Region::attention_core, Region::ffn,
                              Region::router, Region::experts, Region::head}) {
    std::int64_t parts = 1;
    for (const AxisId axis : plan.axes_of(Dim::position, region)) {
      parts *= plan.mesh().axes()[axis].size;
    }
    all = std::lcm(all, parts);
  }
  return all == 1 ? 1 : std::lcm(all, plan.settings().data.sequence_length);
}

// Nobody takes them away between passes, or puts others in their place.
bool weights_stay(const ParamStore& store) {
  return std::all_of(store.groups().begin(), store.groups().end(),
                     [](const auto& group) { return group->whole_weight && !group->away.weight; });
}

}  // namespace

const Stepwise* stepwise_of(const Settings& settings) {
  const Catalogue& catalogue = *settings.catalogue;
  return catalogue.has<Stepwise>(settings.model.kind) ? &catalogue.get<Stepwise>(settings.model.kind) : nullptr;
}

DividedModel::DividedModel(const Config& config, const CheckpointReader& reader, int threads,
                           Communicator& communicator, std::unique_ptr<AttentionCore> core)
    : config_(config),
      device_(make_device(config_.settings.run.device, threads)),
      stream_(device_->make_main_stream()),
      session_(config_) {
  session_.bind(std::move(core));
  session_.plan(communicator.rank(), &communicator, device_.get());
  Plan& plan = session_.plan();
  world_ = &plan.mesh().world_group("generation");
  model_.emplace(plan, *stream_, false);
  load_weights(reader, plan, model_->parameters(), *stream_);
  reader.release_memory();
  if (weights_stay(model_->parameters())) {
    StepSums none;
    const DeviceBatch nothing;
    model_->merge_adapters({.plan = plan, .stream = *stream_, .batch = nothing, .sums = none, .training = false});
    if (config_.settings.run.device == "cpu" && config_.settings.moe.experts > 0) {
      stream_ = std::make_unique<TurnedWeights>(std::move(stream_));
    }
  }
  if (stepwise_kind_ = stepwise_of(config_.settings); stepwise_kind_ != nullptr) {
    growing_ = stepwise_kind_->make(model_->parameters(), plan);
  }
  row_multiple_ = row_multiple_of(plan);
  executor_.emplace(plan, *stream_, row_multiple_);
  const int chunks = static_cast<int>(plan.cut().size() - 1) / plan.stages();
  program_ = forward_program(plan.stage(), plan.stages(), chunks, 1);
  stage_members_ = plan.stage_members();
  slices_ = vocabulary_group(plan);
  while (plan.stage_of_rank(root_) != plan.stage_of_layer(model_->head())) {
    ++root_;
  }
  for (const int member : plan.mesh().members(plan.axes_of(Dim::vocab, Region::head), root_)) {
    first_column_.push_back(plan.part(Dim::vocab, config_.settings.model.vocab_size, Region::head, member).begin);
  }
}

std::vector<std::int64_t> DividedModel::windows() {
  const Plan& plan = session_.plan();
  const Settings& s = config_.settings;
  std::vector<std::int64_t> windows;
  for (int chunk = 0; chunk < static_cast<int>(plan.cut().size() - 1) / plan.stages(); ++chunk) {
    const auto [first, last] = plan.layers_of_chunk(chunk);
    for (int layer = first; layer < std::min(last, model_->head()); ++layer) {
      if (const int block = plan.links()[static_cast<std::size_t>(layer)].block; block >= 0) {
        windows.push_back(block_has_window(s, block) ? s.model.sliding_window : 0);
      }
    }
  }
  return windows;
}

void DividedModel::begin(int sequence, const HostBatch& source) {
  StepSums none;
  const DeviceBatch batch = on_device(source);
  growing_->begin(sequence,
                  {.plan = session_.plan(), .stream = *stream_, .batch = batch, .sums = none, .training = false});
  stream_->synchronize();  // before the batch goes
}

void DividedModel::forget(int sequence) {
  if (growing_ != nullptr) {
    growing_->forget(sequence);
  }
}

void DividedModel::pass(const DeviceBatch& batch, StepSums& sums, std::span<const std::int64_t> wanted,
                        const Seen& seen, std::span<const StepRows> rows) {
  const Plan& plan = session_.plan();
  const StepContext ctx{.plan = plan, .stream = *stream_, .batch = batch, .sums = sums, .training = false};
  PassWork work(plan, *model_, ctx);
  Tensor x;
  if (rows.empty()) {
    executor_->set_tokens(batch.tokens());
    executor_->run(program_, work);
  } else {
    x = growing_->pass(ctx, rows);
  }
  if (wanted.empty()) {
    return;
  }
  const bool has_head = plan.holds_layer(model_->head());
  Tensor n;
  if (has_head) {
    model_->hold_head(ctx);
    n = model_->head_input(ctx, rows.empty() ? work.x() : x);
  }
  const std::size_t width = static_cast<std::size_t>(config_.settings.model.vocab_size);
  const std::size_t chunk = std::max<std::size_t>(1, static_cast<std::size_t>(logits_at_once) / width);
  for (std::size_t begin = 0; begin < wanted.size(); begin += chunk) {
    const std::size_t count = std::min(chunk, wanted.size() - begin);
    const std::vector<float> host = logits(ctx, n, wanted.subspan(begin, count));
    for (std::size_t i = 0; i < count; ++i) {
      seen(begin + i, std::span<const float>(host).subspan(i * width, width));
    }
  }
  if (has_head) {
    model_->release_head(ctx);
  }
}

std::vector<float> DividedModel::logits(const StepContext& ctx, const Tensor& n, std::span<const std::int64_t> rows) {
  const std::int64_t count = rounded_rows(static_cast<std::int64_t>(rows.size()));
  const std::int64_t slices = static_cast<std::int64_t>(first_column_.size());
  const std::int64_t width = config_.settings.model.vocab_size, own = width / slices;
  Stream& s = *stream_;
  Tensor blocks;  // [slices, count, own]
  if (n.defined()) {
    std::vector<RowRun> runs;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      runs.push_back({.from = rows[i], .to = static_cast<std::int64_t>(i), .rows = 1});
    }
    const Tensor chosen = s.device().empty(n.dtype(), {count, n.dim(1)});
    s.fill(chosen, 0);
    s.copy_rows(chosen, n, runs);
    blocks = model_->head_logits(ctx, chosen, 0, count);
    if (slices_ != nullptr) {
      const Tensor part = blocks;
      blocks = s.device().empty(DType::f32, {slices, count, own});
      slices_->all_gather(blocks, part, s);
    }
  } else {
    blocks = s.device().empty(DType::f32, {slices, count, own});
  }
  if (ranks() > 1) {
    world_->broadcast(blocks, root_, s);
    require_all_alive(*world_, s);
  }
  std::vector<float> host(static_cast<std::size_t>(blocks.elements()));
  s.download(host.data(), blocks);
  s.synchronize();
  if (slices == 1) {
    return host;
  }
  std::vector<float> whole(host.size());  // [count, V]
  auto from = host.begin();
  for (const std::int64_t first : first_column_) {
    for (std::int64_t row = 0; row < count; ++row, from += own) {
      std::copy_n(from, own, whole.begin() + row * width + first);
    }
  }
  return whole;
}

bool DividedModel::first_says(bool value) {
  return sum_over_ranks({rank() == 0 && value ? 1 : 0}).front() != 0;
}

std::vector<std::int64_t> DividedModel::sum_over_ranks(std::vector<std::int64_t> values) {
  all_reduce_values(values, ReduceOp::sum, *world_, *stream_);
  return values;
}

}  // namespace orthant
