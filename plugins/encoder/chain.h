// ModelKind "bert": an encoder. Tokens see their whole text, and each, or a text as one, is told apart by a head.
//
//   embedding -> layer 0 .. -> final norm -> transform -> head
//
// With post_norm it is BERT (Devlin et al., "BERT", 2019), where the final norm is left out: the last block ends with
// one. With norms before the branches, rotary positions, gated FFNs and windows it is ModernBERT (Warner et al.,
// "Smarter, Better, Faster, Longer", 2024). With [moe] every k'th block has experts in place of the FFN. The head has
// the vocabulary, or classes: its norm and matrix are the decoder kind's.
#pragma once

#include <memory>
#include <string>

#include <orthant/model.h>

namespace orthant::encoder {

inline constexpr const char* embedding_norm_stem = "model.embed_norm";
inline constexpr const char* final_norm_stem = "model.final_norm";
inline constexpr const char* types_name = "model.embed_types.weight";
inline constexpr const char* transform_stem = "head.dense";
inline constexpr const char *norm_before = ".input_layernorm", *norm_between = ".post_attention_layernorm";
inline std::string block_stem(int block) {
  return "model.layers." + std::to_string(block);
}

// Whether a block has a norm of its own attention: the first one has none behind a norm of the embedding.
bool has_first_norm(const Settings& settings, int block);

std::shared_ptr<const ModelKind> make_bert();

}  // namespace orthant::encoder
