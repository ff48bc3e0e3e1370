#include "core/layers/parts.h"

#include "core/layers/attention.h"
#include "core/layers/ffn.h"

namespace orthant {

void add_parts(Catalogue& catalogue) {
  catalogue.add<AttentionPart>(
      "multi_head",
      "Causal attention of several heads, keys and values shared by groups of them (Ainslie et "
      "al., \"GQA\").",
      std::make_shared<MultiHeadAttention>());
  catalogue.add<FfnPart>("mlp", "Two or three matrices around model.activation.", std::make_shared<Mlp>());
}

}  // namespace orthant
