// What several families state alike: parts of Family::state (family.h). Internal to core/pretrained.
#pragma once

#include <cstdint>

#include "core/pretrained/config_link.h"

namespace orthant::family_parts {

// What every decoder-only transformer of these families says: RMSNorm, SwiGLU in some form, rotary positions.
void transformer(ConfigLink& c, double theta, const char* activation = R"("swiglu")");
// One flag for the biases of all four projections of attention. missing: where the file does not say it.
void attention_bias(ConfigLink& c, bool missing = false);
// experts: the key with their number; also: another that may stand for it.
void routed(ConfigLink& c, const char* experts, const char* also = nullptr);
// A softmax over all experts, whose k greatest are the weights.
void softmax_gate(ConfigLink& c);
// missing: what the family's class takes for a key that is not there. Null is refused.
void integer_by_class(ConfigLink& c, const char* theirs, const char* ours, std::int64_t missing);

// A family of its own file (gpt_oss_family.cpp).
void gpt_oss(ConfigLink& c);

}  // namespace orthant::family_parts
