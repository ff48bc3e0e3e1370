#include "apps/cost/memory.h"

#include <algorithm>
#include <cmath>

#include "apps/cost/operations.h"
#include "apps/cost/step_time.h"

namespace orthant::cost {
namespace {

// Of one block and one micro-batch on one rank.
double block_activations(const ModelShape& model, const Layout& layout, bool routed, double busiest) {
  const double tokens = layout.micro_batch * model.sequence / layout.context, tensor = layout.tensor;
  const double divided = layout.sequence_parallel ? tensor : 1;
  const double row = tokens * model.hidden;
  if (layout.recompute == Recompute::full) {
    return half_bytes * row / divided;
  }
  const double queries = model.heads * model.head_size, keys = model.kv_heads * model.head_size;
  const double values = model.heads * (model.value_size > 0 ? model.value_size : model.head_size);
  // Inputs of both norms, their results as inputs of products; masks of two dropouts, where there are any.
  double bytes = row * (4 * half_bytes + (model.biases ? 2 : 0)) / divided;
  bytes += tokens * half_bytes * (queries + 2 * keys + values) / tensor;  // queries, keys, values; the core's result
  if (!layout.fused_attention && layout.recompute == Recompute::none) {
    bytes += 5 * tokens * model.sequence * model.heads / tensor;  // softmax, its dropout, the mask
  }
  const double inner_rows = model.gated ? 3 : 2;  // before and after the activation
  const double inner = routed ? model.shared_ffn : model.ffn;
  bytes += tokens * half_bytes * (inner_rows - (layout.recompute == Recompute::activation ? 1 : 0)) * inner / tensor;
  if (routed) {
    const double rows = tokens / tensor * model.top_k * layout.expert_tensor * busiest;
    const double expert_rows = inner_rows - (layout.light_experts ? 1 : 0);
    bytes += rows * half_bytes * (2 * model.hidden + expert_rows * model.expert_ffn / layout.expert_tensor);
    bytes += tokens / tensor * model.experts * 8;  // logits and probabilities of the gate
  }
  return bytes;
}

// Micro-batches of one chunk between forward and backward, at most.
double kept_of_chunk(const Layout& layout, int stage, int chunk) {
  const double behind = layout.pipeline - 1 - stage, all = layout.micro_batches();
  if (layout.all_at_once || layout.layered) {
    return all;
  }
  if (layout.chunks == 1) {
    return std::min(all, behind + 1);
  }
  if (chunk == layout.chunks - 1) {
    return std::min(all, 2 * behind + 1);
  }
  // A round of an interleaved schedule has one micro-batch a stage, or all where they do not make whole rounds.
  const double rounds = std::floor(all / layout.pipeline);
  return std::min(all, all > rounds * layout.pipeline && rounds < 2 ? all : layout.pipeline);
}

}  // namespace

namespace {

class MemoryModel {
 public:
  MemoryModel(const ModelShape& model, const Layout& layout, double busiest)
      : model_(model),
        layout_(layout),
        blocks_(layout.blocks_of_pieces(model.layers)),
        dense_{block_parameters(model, layout, false), block_activations(model, layout, false, busiest)},
        routed_{block_parameters(model, layout, model.experts > 0),
                block_activations(model, layout, model.experts > 0, busiest)} {
    int block = 0;
    for (std::size_t piece = 0; piece < blocks_.size(); ++piece) {
      blocks_[piece] += piece + 1 == blocks_.size() ? model.extra_layers : 0;
      routed_blocks_.push_back(routed_blocks(model, block, blocks_[piece]));
      block += blocks_[piece];
    }
  }

  StageMemory mean(double kept) const {
    double dense = 0, routed = 0;
    for (std::size_t piece = 0; piece < blocks_.size(); ++piece) {
      routed += static_cast<double>(routed_blocks_[piece]) / layout_.pipeline;
      dense += static_cast<double>(blocks_[piece] - routed_blocks_[piece]) / layout_.pipeline;
    }
    const BlockParameters held{dense * dense_.parameters.dense + routed * routed_.parameters.dense,
                               routed * routed_.parameters.routed};
    return stage_memory_of(no_stage, held, kept * (dense * dense_.activations + routed * routed_.activations));
  }

  StageMemory of(int stage) const {
    BlockParameters held;
    double activations = 0;
    for (int chunk = 0; chunk < layout_.chunks; ++chunk) {
      const auto piece = static_cast<std::size_t>(chunk * layout_.pipeline + stage);
      const double kept = kept_of_chunk(layout_, stage, chunk), routed = routed_blocks_[piece];
      const double dense = blocks_[piece] - routed;
      held.dense += dense * dense_.parameters.dense + routed * routed_.parameters.dense;
      held.routed += routed * routed_.parameters.routed;
      activations += kept * (dense * dense_.activations + routed * routed_.activations);
    }
    return stage_memory_of(stage, held, activations);
  }

 private:
  struct Block {
    BlockParameters parameters;
    double activations = 0;
  };

  static constexpr int no_stage = -1;  // without tables and logits
  StageMemory stage_memory_of(int stage, BlockParameters held, double activations) const;

  const ModelShape& model_;
  const Layout& layout_;
  std::vector<int> blocks_, routed_blocks_;  // of each piece
  Block dense_, routed_;
};

StageMemory MemoryModel::stage_memory_of(int stage, BlockParameters held, double activations) const {
  const bool first = stage == 0, last = stage >= 0 && stage == layout_.pipeline - 1;
  const double table = embedding_parameters(model_, layout_);
  held.dense += (first ? table : 0) + (last && (!first || !model_.tied) ? table : 0);
  if (first && model_.learned_positions) {
    held.dense += model_.sequence * model_.hidden;
  }
  const double copies = std::max(1, layout_.optimizer_copies);
  const double shards = std::max(1.0, layout_.data() * layout_.context / copies);
  const double routed_shards = std::max(1.0, layout_.expert_data() / copies);
  const auto share = [&](int from, double of) { return layout_.zero >= from ? of : 1.0; };
  const auto bytes = [&](double each, int from) {
    return each * (held.dense / share(from, shards) + held.routed / share(from, routed_shards));
  };
  StageMemory memory;
  const bool wide = layout_.precision == Precision::fp32;
  memory.weights = bytes(wide ? 4 : half_bytes, 3);
  memory.gradients = bytes(layout_.narrow_gradients && !wide ? 2 : 4, 2);
  (layout_.host_states ? memory.host : memory.states) = bytes(layout_.state_bytes > 0 ? layout_.state_bytes
                                                              : wide                  ? 8
                                                                                      : 12,
                                                              1);
  memory.activations = activations;
  if (last) {
    const double logits = layout_.micro_batch * model_.sequence / layout_.context * model_.vocabulary / layout_.tensor;
    constexpr double logit_bytes = 6;  // as halves, and in fp32 for the loss, whose gradient takes their place
    memory.logits = logit_bytes * logits;
  }
  memory.workspace = layout_.libraries;
  if (layout_.zero == 3) {  // whole weights of one block or of a table, and their gradients before they are divided
    const BlockParameters whole = block_parameters(model_, layout_, model_.experts > 0);
    const double gradient = layout_.narrow_gradients ? half_bytes : 4;
    memory.workspace += (half_bytes + gradient) * std::max(whole.dense + whole.routed, table);
  }
  return memory;
}

}  // namespace

StageMemory stage_memory(const ModelShape& model, const Layout& layout, int stage, double busiest) {
  return MemoryModel(model, layout, busiest).of(stage);
}

double mean_memory(const ModelShape& model, const Layout& layout, double kept, double busiest) {
  return MemoryModel(model, layout, busiest).mean(kept).total();
}

StageMemory peak_memory(const ModelShape& model, const Layout& layout, double busiest) {
  const MemoryModel memory(model, layout, busiest);
  StageMemory most;
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    const StageMemory own = memory.of(stage);
    most = own.total() > most.total() ? own : most;
  }
  return most;
}

}  // namespace orthant::cost
