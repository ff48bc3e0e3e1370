// The data axis: each rank takes its sequences of the global batch. What all of them would hold alike may be sharded
// among them (zero_keeper.h), and gradients are summed while the backward pass goes on (Li et al., "PyTorch
// Distributed", VLDB 2020).
#include <orthant/plugin.h>

#include <algorithm>

#include "layered_schedule.h"
#include "zero_keeper.h"

namespace {

using namespace orthant;
using data_plugin::LayeredSchedule;
using data_plugin::ZeroKeeper;
using data_plugin::ZeroOptions;

class Data final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {
        {.name = "size",
         .default_value = std::int64_t{1},
         .help = "Ranks that split the batch.",
         .minimum = 1,
         .maximum = 65536},
        {.name = "zero",
         .default_value = std::int64_t{0},
         .help = "ZeRO stage: 0 every rank holds everything; 1 optimizer state is sharded, 2 gradients too, 3 weights "
                 "too.",
         .minimum = 0,
         .maximum = 3},
        {.name = "bucket_mb",
         .default_value = 4.0,
         .help = "Megabytes of gradients summed in one collective, while the backward pass goes on (stage 0; from 1 "
                 "on: all of a layer).",
         .minimum = 0.001,
         .maximum = 1e6},
        {.name = "shard_ranks",
         .default_value = std::int64_t{0},
         .help = "Shards are spread over so many consecutive ranks of those that sum a gradient, and replicated "
                 "across; 0: over all of them.",
         .minimum = 0,
         .maximum = 65536},
        {.name = "whole_below",
         .default_value = std::int64_t{100000},
         .help = "Stage 3: groups of parameters with fewer elements keep whole weights.",
         .minimum = 0},
        {.name = "prefetch",
         .default_value = true,
         .help = "Stage 3: the next layer's weights are gathered while a layer is computed."},
        {.name = "layered",
         .default_value = false,
         .help = "Every micro-batch passes a layer before any passes the next one: one gather and one sum a layer, but "
                 "the activations of all micro-batches are kept."}};
  }

  void claim(Mesh& mesh, const Table& config) override {
    size_ = static_cast<int>(config.integer("size"));
    mesh.claim({.name = "data", .size = size_, .splits = {Dim::batch}});
    options_ = {.stage = static_cast<int>(config.integer("zero")),
                .bucket = std::max<std::int64_t>(1, static_cast<std::int64_t>(config.number("bucket_mb") * 1e6 / 4)),
                .shard_ranks = static_cast<int>(config.integer("shard_ranks")),
                .whole_below = config.integer("whole_below"),
                .prefetch = config.boolean("prefetch"),
                .layered = config.boolean("layered")};
  }

  std::vector<KeyChange> smaller() const override {
    std::vector<KeyChange> changes;
    for (std::int64_t stage = options_.stage + 1; size_ > 1 && stage <= 3; ++stage) {
      changes.push_back({"zero", stage});
    }
    return changes;
  }

  std::int64_t likeness(const Mesh&, int) const override { return 0; }
  void plan(Plan& plan, Mesh&) override {
    plan.chain(std::make_unique<ZeroKeeper>(plan.dry() ? nullptr : &plan.device(), options_));
    if (options_.layered && plan.stages() > 1) {
      throw SettingError("plugins.data.layered",
                         fmt::format("layered = true is a second schedule beside that of the layout's {} stages: leave "
                                     "it out, theirs has an order of its own",
                                     plan.stages()));
    }
    if (options_.layered) {
      plan.bind(std::make_unique<LayeredSchedule>(plan.layers()));
    }
  }

 private:
  int size_ = 1;
  ZeroOptions options_;
};

}  // namespace

ORTHANT_PLUGIN("data", Data)
