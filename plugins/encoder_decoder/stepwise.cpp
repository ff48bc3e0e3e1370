#include "stepwise.h"

#include <map>
#include <utility>
#include <vector>

#include <orthant/blocks.h>
#include <orthant/catalogue.h>
#include <orthant/settings.h>

#include "blocks.h"
#include "chain.h"
#include "settings.h"

namespace orthant::encoder_decoder {
namespace {

class GrowingTargets final : public StepwiseModel {
 public:
  GrowingTargets(const Parameters& parameters, Plan& plan) {
    const Settings& s = plan.settings();
    const ModelKind& kind = s.catalogue->get<ModelKind>("t5");
    const std::size_t bridge = static_cast<std::size_t>(encoder_layers(s)) + 1;
    const std::vector<Link>& links = plan.links();
    for (std::size_t i = 0; i < bridge; ++i) {
      encoder_.push_back(kind.make(links[i], parameters, plan));
    }
    memory_norm_ = make_norm(encoder_norm, parameters, plan);
    embedding_ = s.catalogue->get<ModelKind>("decoder").make(links.front(), parameters, plan);
    for (std::size_t i = bridge + 1; i + 1 < links.size(); ++i) {
      decoder_.push_back(make_growing_block(links[i], parameters, plan));
    }
  }

  void begin(int sequence, const StepContext& source) override {
    Saved unused;
    Bundle s;
    for (const auto& layer : encoder_) {
      s = layer->forward(source, s, unused);
      unused = {};
    }
    const StepContext there = source.in(source_space);
    const Tensor memory = memory_norm_->forward(there, s.front(), unused);
    Sequence& begun = sequences_[sequence];
    for (const auto& block : decoder_) {
      begun.blocks.push_back({block->keep(there, memory), std::make_shared<KeptKeys>()});
    }
  }

  Tensor pass(const StepContext& ctx, std::span<const StepRows> rows) override {
    Saved unused;
    Tensor x = embedding_->forward(ctx, {}, unused).front();
    for (std::size_t i = 0; i < decoder_.size(); ++i) {
      std::vector<KeptRows> own;
      std::vector<CrossAttention::Run> runs;
      for (const StepRows& run : rows) {
        const OfBlock& kept = sequences_.at(run.sequence).blocks[i];
        own.push_back({kept.keys, run.row, run.rows, run.position});
        runs.push_back({&kept.source, run.row, run.rows});
      }
      x = decoder_[i]->step(ctx, x, own, runs);
    }
    return x;
  }

  void forget(int sequence) override { sequences_.erase(sequence); }

 private:
  struct OfBlock {
    CrossAttention::Kept source;
    std::shared_ptr<KeptKeys> keys;
  };
  struct Sequence {
    std::vector<OfBlock> blocks;
  };

  std::vector<std::unique_ptr<Layer>> encoder_;
  std::unique_ptr<PartLayer> memory_norm_;
  std::unique_ptr<Layer> embedding_;  // of the target
  std::vector<std::unique_ptr<GrowingBlock>> decoder_;
  std::map<int, Sequence> sequences_;
};

class T5Stepwise final : public Stepwise {
 public:
  SequenceDocument asked(const Settings& s, std::vector<std::int32_t> source) const override {
    append_end(source, stack_keys(s));
    if (static_cast<std::int64_t>(source.size()) > source_length(s)) {
      throw ConfigError(fmt::format("a source of {} tokens: the model's sources have {} positions, model.source_length",
                                    source.size(), source_length(s)));
    }
    SequenceDocument target;
    target.token = {static_cast<std::int32_t>(stack_keys(s).start_token)};
    target.spaces.resize(1);
    target.spaces.front().label.assign(source.size(), -1);
    target.spaces.front().token = std::move(source);
    return target;
  }
  std::vector<std::int32_t> ends(const Settings& s) const override {
    const std::int64_t end = stack_keys(s).end_token;
    return end < 0 ? std::vector<std::int32_t>() : std::vector<std::int32_t>{static_cast<std::int32_t>(end)};
  }
  std::unique_ptr<StepwiseModel> make(const Parameters& parameters, Plan& plan) const override {
    return std::make_unique<GrowingTargets>(parameters, plan);
  }
};

}  // namespace

std::shared_ptr<const Stepwise> make_t5_stepwise() {
  return std::make_shared<T5Stepwise>();
}

}  // namespace orthant::encoder_decoder
