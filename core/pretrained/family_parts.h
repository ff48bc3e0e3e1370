// What several families state alike: parts of Family::state (family.h). Internal to core/pretrained.
#pragma once

#include <cstdint>

#include "core/pretrained/config_link.h"
#include "core/pretrained/rope_link.h"

namespace orthant::family_parts {

// What every decoder-only transformer of these families says: RMSNorm, SwiGLU in some form, rotary positions. tied:
// what tie_word_embeddings is where the file does not say it.
void transformer(ConfigLink& c, double theta, const char* activation = R"("swiglu")",
                 const PartialRotary* part = nullptr, bool tied = false);
// One flag for the biases of all four projections of attention. missing: where the file does not say it.
void attention_bias(ConfigLink& c, bool missing = false);
// experts: the key with their number; also: another that may stand for it.
void routed(ConfigLink& c, const char* experts, const char* also = nullptr);
// A softmax over all experts, whose k greatest are the weights.
void softmax_gate(ConfigLink& c);
// Sigmoids, of which the k greatest are chosen after a bias of each expert was added (DeepSeek-V3).
void bias_gate(ConfigLink& c);
// missing: what the family's class takes for a key that is not there. Null is refused.
void integer_by_class(ConfigLink& c, const char* theirs, const char* ours, std::int64_t missing);

// Families of files of their own: gpt_oss_family.cpp, bias_gate_families.cpp.
void gpt_oss(ConfigLink& c);
void glm4_moe(ConfigLink& c);
void dots1(ConfigLink& c);
void minimax_m2(ConfigLink& c);
void ernie4_5_moe(ConfigLink& c);

}  // namespace orthant::family_parts
