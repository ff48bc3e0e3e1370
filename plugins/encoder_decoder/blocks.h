// The layers of an encoder-decoder's links (chain.h).
#pragma once

#include <memory>
#include <vector>

#include <orthant/model.h>

#include "cross_attention.h"
#include "relative_scores.h"

namespace orthant::encoder_decoder {

// The source's embedding: passes {s}. embedding: the decoder kind's layer, which looks rows up.
std::unique_ptr<Layer> make_source_embedding(std::unique_ptr<Layer> embedding);
// {s} -> {s}.
std::unique_ptr<Layer> make_encoder_block(const Link& link, const Parameters& parameters, Plan& plan);
// The encoder's norm, and the target's embedding: {s} -> {memory, x}.
std::unique_ptr<Layer> make_bridge(std::unique_ptr<Layer> embedding, const Parameters& parameters, Plan& plan);
// {memory, x} -> {memory, x}, the last one {x}.
std::unique_ptr<Layer> make_decoder_block(const Link& link, const Parameters& parameters, Plan& plan);

// A block of the decoder while targets grow, outside of training.
class GrowingBlock {
 public:
  virtual ~GrowingBlock() = default;
  // What it needs of a source; source: the encoder's context.
  virtual CrossAttention::Kept keep(const StepContext& source, const Tensor& memory) const = 0;
  // x [T, d] of further tokens -> [T, d].
  virtual Tensor step(const StepContext& ctx, const Tensor& x, const std::vector<KeptRows>& rows,
                      const std::vector<CrossAttention::Run>& runs) const = 0;
};
std::unique_ptr<GrowingBlock> make_growing_block(const Link& link, const Parameters& parameters, Plan& plan);

}  // namespace orthant::encoder_decoder
