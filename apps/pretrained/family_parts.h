// What several families state alike: parts of Family::state (family.h). Internal to apps/pretrained.
#pragma once

#include <cstdint>

#include "apps/pretrained/config_link.h"
#include "apps/pretrained/rope_link.h"

namespace orthant::family_parts {

// What every decoder-only transformer of these families says.
struct Common {
  double theta = 1e4;  // of rotary positions
  const char* activation = R"("swiglu")";
  RopeKeys rope = {};
  bool tied = false;  // what tie_word_embeddings is where the file does not say it
  const char* norm = R"("rmsnorm")";
  // The key of the gate's function, and what it is.
  const char* act_key = "hidden_act";
  const char* act = "silu";
};
void transformer(ConfigLink& c, const Common& common);

void head_dim(ConfigLink& c);
// Families whose heads share the model's width and say nothing of it.
void no_head_dim(ConfigLink& c);
// Mistral's: a width or null. missing: where the file does not say it.
void window(ConfigLink& c, const ConfigLink::Theirs& missing);
// Blocks with the window and without it, named one by one in layer_types. Here every n-th is without it; missing: n
// where the file names none, and the width where it does not say it. Returns whether a block has the window.
bool window_by_layer(ConfigLink& c, std::int64_t every_missing, std::int64_t width_missing);
void dense(ConfigLink& c);
// One flag for the biases of all four projections of attention. missing: where the file does not say it.
void attention_bias(ConfigLink& c, bool missing = false);
// experts: the key with their number; also: another that may stand for it.
void routed(ConfigLink& c, const char* experts, const char* also = nullptr);
// How the published model's router was trained, so that training goes on so. Say it last: it depends on the numbers of
// layers and experts. `missing`: router_aux_loss_coef where the file does not say it.
//
// The coefficient is of transformers' load_balancing_loss_func: E sum_e F_e P_e over the tokens of all L routed layers
// together, where a token's k choices count k times. Ours is the sum over layers of E sum_e f_e P_e, where they count
// once (router/README.md). Where the layers' shares are alike, that is the same loss with moe.aux_loss = coefficient *
// k / L; with one layer it is always the same. Theirs is over the tokens of a micro-batch, ours over those of a
// sequence unless somebody writes moe.balance_over = "batch", which depends on the layout.
void trained_by_transformers(ConfigLink& c, double missing);
// The same of DeepSeek's own code: aux_loss_alpha, for each layer and sequence, as ours.
void trained_by_deepseek(ConfigLink& c, double missing);
// Balanced by the gate's biases alone, which stay as they were published until somebody asks for another rate.
void balanced_by_biases(ConfigLink& c);

// A softmax over all experts, whose k greatest are the weights.
void softmax_gate(ConfigLink& c);
// Sigmoids, of which the k greatest are chosen after a bias of each expert was added (DeepSeek-V3).
void bias_gate(ConfigLink& c);
// missing: what the family's class takes for a key that is not there. Null is refused.
void integer_by_class(ConfigLink& c, const char* theirs, const char* ours, std::int64_t missing);

// Families of files of their own. gpt_oss_family.cpp, bias_gate_families.cpp
void gpt_oss(ConfigLink& c);
void glm4_moe(ConfigLink& c);
void dots1(ConfigLink& c);
void minimax_m2(ConfigLink& c);
void ernie4_5_moe(ConfigLink& c);
void bailing_moe_v2(ConfigLink& c);
// deepseek_families.cpp
void deepseek_v2(ConfigLink& c);
void deepseek_v3(ConfigLink& c);
void glm4_moe_lite(ConfigLink& c);
// phi_families.cpp
void phi3(ConfigLink& c);
void phimoe(ConfigLink& c);
// scaled_families.cpp
void granite(ConfigLink& c);
void granitemoe(ConfigLink& c);
void gemma2(ConfigLink& c);
void gemma3_text(ConfigLink& c);
// hunyuan_family.cpp
void hunyuan_v1_moe(ConfigLink& c);

}  // namespace orthant::family_parts
