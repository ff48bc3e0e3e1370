#include "core/model.h"

#include "core/layers/block.h"
#include "core/layers/embedding.h"
#include "core/layers/head.h"
#include "core/layers/parameters.h"

namespace orthant {

Model::Model(Plan& plan, Stream& stream) : parameters_(plan, stream) {
  const Settings& settings = plan.settings();
  const std::vector<LayerSpecs> table = parameter_table(settings);
  ParamGroup& embedding = parameters_.group("embedding");
  layers_.push_back(std::make_unique<EmbeddingLayer>(embedding));
  for (int block = 0; block < settings.model.layers; ++block) {
    const std::string name = fmt::format("layer {}", block);
    ParamGroup* experts = block_has_experts(settings, block) ? &parameters_.group(name + " experts") : nullptr;
    layers_.push_back(std::make_unique<Block>(parameters_.group(name), experts, plan, block + 1));
  }
  ParamGroup* tied = settings.model.tie_embeddings ? &embedding : nullptr;
  layers_.push_back(std::make_unique<HeadLayer>(parameters_.group("head"), tied, plan));

  for (auto& group : parameters_.groups()) {
    for (const LayerSpecs& specs : table) {
      if (specs.name == group->name) {
        complete_after_.push_back(group.get());
        owner_.push_back(specs.layer);
        if (!specs.experts) {
          zeroed_.push_back(group.get());
        }
      }
    }
  }
}

void Model::acquire(const StepContext& ctx, const Layer& layer) {
  for (ParamGroup* group : layer.groups()) {
    for (const auto& keeper : ctx.plan.keepers()) {
      keeper->acquire(*group, ctx.stream);
    }
  }
}

void Model::release(const StepContext& ctx, const Layer& layer) {
  for (ParamGroup* group : layer.groups()) {
    for (const auto& keeper : ctx.plan.keepers()) {
      keeper->release(*group, ctx.stream);
    }
  }
}

Tensor Model::forward(const StepContext& ctx, Tensor x, int first, int last) {
  for (int i = first; i < last; ++i) {
    Layer& layer = *layers_[static_cast<std::size_t>(i)];
    acquire(ctx, layer);
    Saved saved;
    x = layer.forward(ctx, x, saved);
    if (ctx.training) {
      ctx.plan.stash().put(i, ctx.micro_batch, std::move(saved));
    }
    release(ctx, layer);
  }
  return x;
}

Tensor Model::backward(const StepContext& ctx, Tensor dy, int first, int last, bool last_micro_batch) {
  for (int i = last - 1; i >= first; --i) {
    Layer& layer = *layers_[static_cast<std::size_t>(i)];
    acquire(ctx, layer);
    Saved saved = ctx.plan.stash().take(i, ctx.micro_batch);
    dy = layer.backward(ctx, dy, saved);
    release(ctx, layer);
    for (std::size_t g = 0; last_micro_batch && g < owner_.size(); ++g) {
      if (owner_[g] == i) {
        for (const auto& keeper : ctx.plan.keepers()) {
          keeper->grad_ready(*complete_after_[g], ctx.stream);
        }
        for (const auto& keeper : ctx.plan.keepers()) {
          keeper->sum_grads(*complete_after_[g], ctx.stream);
        }
      }
    }
  }
  return dy;
}

void Model::begin_step(Stream& stream) {
  for (auto& group : parameters_.groups()) {
    group->summed = false;
  }
  for (ParamGroup* group : zeroed_) {
    stream.fill(group->grad, 0);
  }
}

}  // namespace orthant
