// The layers of an encoder-decoder's links (chain.h).
#pragma once

#include <memory>

#include <orthant/model.h>

namespace orthant::encoder_decoder {

// The source's embedding: passes {s}. embedding: the decoder kind's layer, which looks rows up.
std::unique_ptr<Layer> make_source_embedding(std::unique_ptr<Layer> embedding);
// {s} -> {s}.
std::unique_ptr<Layer> make_encoder_block(const Link& link, const Parameters& parameters, Plan& plan);
// The encoder's norm, and the target's embedding: {s} -> {memory, x}.
std::unique_ptr<Layer> make_bridge(std::unique_ptr<Layer> embedding, const Parameters& parameters, Plan& plan);
// {memory, x} -> {memory, x}, the last one {x}.
std::unique_ptr<Layer> make_decoder_block(const Link& link, const Parameters& parameters, Plan& plan);

}  // namespace orthant::encoder_decoder
