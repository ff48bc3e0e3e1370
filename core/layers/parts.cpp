#include "core/layers/parts.h"

#include "core/layers/attention.h"
#include "core/layers/ffn.h"
#include "core/layers/latent_attention.h"

namespace orthant {

void add_parts(Catalogue& catalogue) {
  catalogue.add<AttentionPart>(
      "multi_head",
      "Causal attention of several heads, keys and values shared by groups of them (Ainslie et "
      "al., \"GQA\").",
      std::make_shared<MultiHeadAttention>());
  catalogue.add<AttentionPart>(
      "latent",
      "Causal attention whose keys and values are made of one narrow row a token (DeepSeek-AI, \"DeepSeek-V2\", 2024).",
      std::make_shared<MultiHeadLatentAttention>());
  catalogue.add<FfnPart>("mlp", "Two or three matrices around model.activation.", std::make_shared<Mlp>());
}

}  // namespace orthant
