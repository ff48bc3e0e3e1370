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
  bytes += tokens * half_bytes * inner_rows * inner / tensor;
  if (routed) {
    const double rows = tokens / tensor * model.top_k * layout.expert_tensor * busiest;
    bytes += rows * half_bytes * (2 * model.hidden + inner_rows * model.expert_ffn / layout.expert_tensor);
    bytes += tokens / tensor * model.experts * 8;  // logits and probabilities of the gate
  }
  return bytes;
}

// Micro-batches of one chunk between forward and backward, at most.
double kept_of_chunk(const Layout& layout, int stage, int chunk) {
  const double behind = layout.pipeline - 1 - stage, all = layout.micro_batches();
  if (layout.all_at_once) {
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

StageMemory stage_memory(const ModelShape& model, const Layout& layout, int stage, double busiest) {
  const std::vector<int> blocks = layout.blocks_of_pieces(model.layers);
  BlockParameters held;
  double activations = 0;
  int block = 0;
  for (std::size_t piece = 0; piece < blocks.size(); ++piece) {
    const bool own = static_cast<int>(piece) % layout.pipeline == stage;
    const int extra = piece + 1 == blocks.size() ? model.extra_layers : 0;
    const double kept = kept_of_chunk(layout, stage, static_cast<int>(piece) / layout.pipeline);
    for (int i = 0; i < blocks[piece] + extra; ++i, ++block) {
      if (own) {
        const BlockParameters count = block_parameters(model, layout, routed_block(model, block));
        held.dense += count.dense;
        held.routed += count.routed;
        activations += kept * block_activations(model, layout, routed_block(model, block), busiest);
      }
    }
  }
  const bool first = stage == 0, last = stage == layout.pipeline - 1;
  const double table = embedding_parameters(model, layout);
  held.dense += (first ? table : 0) + (last && (!first || !model.tied) ? table : 0);
  if (first && model.learned_positions) {
    held.dense += model.sequence * model.hidden;
  }
  const double copies = std::max(1, layout.optimizer_copies);
  const double shards = std::max(1.0, layout.data() * layout.context / copies);
  const double routed_shards = std::max(1.0, layout.expert_data() / copies);
  const auto share = [&](int from, double of) { return layout.zero >= from ? of : 1.0; };
  const auto bytes = [&](double each, int from) {
    return each * (held.dense / share(from, shards) + held.routed / share(from, routed_shards));
  };
  StageMemory memory;
  const bool wide = layout.precision == Precision::fp32;
  memory.weights = bytes(wide ? 4 : half_bytes, 3);
  memory.gradients = bytes(layout.narrow_gradients && !wide ? 2 : 4, 2);
  memory.states = bytes(wide ? 8 : 12, 1);
  memory.activations = activations;
  if (last) {
    const double logits = layout.micro_batch * model.sequence / layout.context * model.vocabulary / layout.tensor;
    constexpr double logit_bytes = 6;  // as halves, and in fp32 for the loss, whose gradient takes their place
    memory.logits = logit_bytes * logits;
  }
  constexpr double libraries = 130e6;
  memory.workspace = libraries;
  if (layout.zero == 3) {  // whole weights of one block or of a table, and their gradients before they are divided
    const BlockParameters whole = block_parameters(model, layout, model.experts > 0);
    const double gradient = layout.narrow_gradients ? half_bytes : 4;
    memory.workspace += (half_bytes + gradient) * std::max(whole.dense + whole.routed, table);
  }
  return memory;
}

StageMemory peak_memory(const ModelShape& model, const Layout& layout, double busiest) {
  StageMemory most;
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    const StageMemory memory = stage_memory(model, layout, stage, busiest);
    most = memory.total() > most.total() ? memory : most;
  }
  return most;
}

}  // namespace orthant::cost
