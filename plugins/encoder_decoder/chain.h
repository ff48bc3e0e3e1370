// ModelKind "t5": an encoder over the source and a decoder over the target, which sees the encoder's output in every
// block (Vaswani et al., "Attention Is All You Need", 2017), with relative positions and norms before the branches as
// in T5 (Raffel et al., 2020). With [moe] experts in both stacks, and router "switch", it is Switch (Fedus et al.,
// 2021).
//
//   embedding -> encoder layer 0 .. -> encoder end -> decoder layer 0 .. -> head
//
// s [T_s, d] travels through the encoder. Behind its end the chain passes two tensors: memory [T_s, d], the encoder's
// output, and x [T, d]. Wherever a pipeline cuts the decoder both are sent.
#pragma once

#include <memory>
#include <string>

#include <orthant/model.h>

namespace orthant::encoder_decoder {

inline constexpr const char* encoder_table = "encoder.relative_bias.weight";
inline constexpr const char* decoder_table = "decoder.relative_bias.weight";
inline constexpr const char* encoder_norm = "encoder.norm";
inline std::string encoder_stem(int layer) {
  return "encoder.layers." + std::to_string(layer);
}
inline std::string decoder_stem(int layer) {
  return "decoder.layers." + std::to_string(layer);
}

std::shared_ptr<const ModelKind> make_t5();

}  // namespace orthant::encoder_decoder
