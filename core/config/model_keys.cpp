#include "core/config/model_keys.h"

#include <orthant/gate.h>
#include <orthant/model.h>
#include <orthant/part.h>

#include "core/config/declarer.h"

namespace orthant {
namespace {

// How rotary positions reach further than those of the first training.
void declare_rope(Declarer& model) {
  model.key(
      "rope_interleaved", [](auto& s) -> auto& { return s.model.rope_interleaved; },
      "Whether rotary positions turn neighbouring channels (DeepSeek), not those of both halves of a head (Llama).");
  model.choice(
      "rope_scaling", [](auto& s) -> auto& { return s.model.rope_scaling; },
      {"none", "linear", "llama3", "yarn", "longrope", "dynamic"},
      "How rotary angles are slowed down for sequences longer than those of the first training.");
  at_least(model.key(
               "rope_factor", [](auto& s) -> auto& { return s.model.rope_factor; },
               "rope_scaling: how many times as long sequences may be."),
           1);
  between(model.key(
              "rope_original_positions", [](auto& s) -> auto& { return s.model.rope_original_positions; },
              "llama3, yarn, longrope, dynamic: positions of a sequence of the first training."),
          0, 1 << 30);
  at_least(model.key(
               "rope_low_freq_factor", [](auto& s) -> auto& { return s.model.rope_low_freq_factor; },
               "llama3: pairs that turn less often in the original positions are slowed down."),
           0);
  at_least(model.key(
               "rope_high_freq_factor", [](auto& s) -> auto& { return s.model.rope_high_freq_factor; },
               "llama3: pairs that turn more often in the original positions stay; those between do a part."),
           0);
  at_least(model.key(
               "rope_beta_fast", [](auto& s) -> auto& { return s.model.rope_beta_fast; },
               "yarn: pairs that turn more often in the original positions stay."),
           0);
  at_least(model.key(
               "rope_beta_slow", [](auto& s) -> auto& { return s.model.rope_beta_slow; },
               "yarn: pairs that turn less often in the original positions are slowed down; those between do a part."),
           0);
  model.key(
      "rope_truncate", [](auto& s) -> auto& { return s.model.rope_truncate; },
      "yarn: whether the first and the last pair between are rounded outwards, to whole numbers.");
  at_least(
      model.key(
          "rope_attention_factor", [](auto& s) -> auto& { return s.model.rope_attention_factor; },
          "yarn, longrope: what rotated queries and keys are multiplied by; 0: yarn 0.1 ln(rope_factor) + 1, or as "
          "rope_mscale says; longrope sqrt(1 + ln(rope_factor) / ln(rope_original_positions))."),
      0);
  at_least(model.key(
               "rope_mscale", [](auto& s) -> auto& { return s.model.rope_mscale; },
               "yarn, as DeepSeek: the attention factor is m(rope_mscale) / m(rope_mscale_all_dim), with m(x) = 0.1 x "
               "ln(rope_factor) + 1; not without rope_mscale_all_dim."),
           0);
  at_least(
      model.key(
          "rope_mscale_all_dim", [](auto& s) -> auto& { return s.model.rope_mscale_all_dim; },
          "yarn, as DeepSeek: see rope_mscale; and latent multiplies its scores by m(rope_mscale_all_dim) squared."),
      0);
  at_least(model.key(
               "rope_alpha", [](auto& s) -> auto& { return s.model.rope_alpha; },
               "dynamic: the base is raised as for sequences so many times as long as the original ones, however long "
               "they are (Hunyuan); 0: for those that are longer."),
           0);
  model.key(
      "rope_short_factors", [](auto& s) -> auto& { return s.model.rope_short_factors; },
      "longrope: what divides the frequency of each pair in sequences of at most rope_original_positions.");
  model.key(
      "rope_long_factors", [](auto& s) -> auto& { return s.model.rope_long_factors; },
      "longrope: what divides them in longer sequences.");
}

}  // namespace

void declare_model(std::vector<CoreKey>& keys) {
  Declarer model(keys, "model");
  model.kind<ModelKind>(
      "kind", [](auto& s) -> auto& { return s.model.kind; },
      "What the model is: a chain of embedding, blocks and head, or what a plugin brings.");
  between(model.key(
              "layers", [](auto& s) -> auto& { return s.model.layers; }, "Transformer blocks."),
          1, 1 << 16);
  between(model.key(
              "d_model", [](auto& s) -> auto& { return s.model.d_model; }, "Width of the residual stream."),
          1, 1 << 20);
  between(model.key(
              "heads", [](auto& s) -> auto& { return s.model.heads; }, "Query heads of the attention."),
          1, 1 << 16);
  between(model.key(
              "kv_heads", [](auto& s) -> auto& { return s.model.kv_heads; },
              "Key and value heads, shared by groups of query heads; 0: as many as heads."),
          0, 1 << 16);
  between(model.key(
              "head_dim", [](auto& s) -> auto& { return s.model.head_dim; },
              "Width of a head; 0: d_model divided by heads."),
          0, 1 << 16);
  model.kind<AttentionPart>(
      "attention", [](auto& s) -> auto& { return s.model.attention; }, "What attention is made of.");
  model.key(
      "qk_norm", [](auto& s) -> auto& { return s.model.qk_norm; },
      "multi_head: whether queries and keys are normalised, by RMSNorm before rotation.");
  model.choice(
      "qk_norm_over", [](auto& s) -> auto& { return s.model.qk_norm_over; }, {"head", "all"},
      "qk_norm: each head by itself, with one weight for all (Qwen3); or all heads of a token as one row (OLMoE), "
      "which "
      "needs whole heads on every rank.");
  model.key(
      "qk_norm_rotated", [](auto& s) -> auto& { return s.model.qk_norm_rotated; },
      "qk_norm: whether they are normalised after they are rotated (Hunyuan), not before.");
  model.key(
      "biases", [](auto& s) -> auto& { return s.model.biases; },
      "multi_head: whether queries, keys and values have biases.");
  model.key(
      "output_bias", [](auto& s) -> auto& { return s.model.output_bias; },
      "multi_head: whether the projection behind attention has a bias.");
  model.key(
      "attention_sinks", [](auto& s) -> auto& { return s.model.attention_sinks; },
      "multi_head: whether each query head has a learned score that joins its softmax, with no value (gpt-oss).");
  between(model.key(
              "q_lora_rank", [](auto& s) -> auto& { return s.model.q_lora_rank; },
              "latent: width of compressed queries; 0: they are not compressed."),
          0, 1 << 20);
  between(model.key(
              "kv_lora_rank", [](auto& s) -> auto& { return s.model.kv_lora_rank; },
              "latent: width of compressed keys and values."),
          0, 1 << 20);
  between(model.key(
              "qk_nope_head_dim", [](auto& s) -> auto& { return s.model.qk_nope_head_dim; },
              "latent: channels of a query and key head that are not rotated."),
          0, 1 << 16);
  between(model.key(
              "qk_rope_head_dim", [](auto& s) -> auto& { return s.model.qk_rope_head_dim; },
              "latent: channels of a query and key head that are rotated; those of a key are the same for all heads."),
          0, 1 << 16);
  between(model.key(
              "v_head_dim", [](auto& s) -> auto& { return s.model.v_head_dim; },
              "latent: channels of a value head, at most those of a key head."),
          0, 1 << 16);
  between(model.key(
              "sliding_window", [](auto& s) -> auto& { return s.model.sliding_window; },
              "Tokens that a token sees, the last ones, itself included; 0: all before it."),
          0, 1 << 24);
  between(model.key(
              "full_attention_every", [](auto& s) -> auto& { return s.model.full_attention_every; },
              "sliding_window: distance between blocks without it. 2: the second, fourth, ... (gpt-oss); 0: every "
              "block has the window."),
          0, 1 << 16);
  at_least(model.key(
               "attention_scale", [](auto& s) -> auto& { return s.model.attention_scale; },
               "What the products of queries and keys are multiplied by; 0: 1 / sqrt(channels of a key head)."),
           0);
  at_least(model.key(
               "attention_softcap", [](auto& s) -> auto& { return s.model.attention_softcap; },
               "multi_head: scores s become cap tanh(s / cap) (Gemma 2); 0: they stay. On CPUs alone."),
           0);
  model.kind<FfnPart>(
      "ffn", [](auto& s) -> auto& { return s.model.ffn; }, "What the dense feed-forward layers are made of.");
  between(model.key(
              "d_ff", [](auto& s) -> auto& { return s.model.d_ff; },
              "Width of the dense feed-forward layer; 0: 4 times d_model."),
          0, 1 << 24);
  between(model.key(
              "vocab_size", [](auto& s) -> auto& { return s.model.vocab_size; },
              "Tokens of the vocabulary; 0: those of data.tokenizer, or of the token files."),
          0, 1 << 28);
  model.choice(
      "norm", [](auto& s) -> auto& { return s.model.norm; }, {"layernorm", "rmsnorm"}, "Normalisation.");
  model.key(
      "norm_eps", [](auto& s) -> auto& { return s.model.norm_eps; },
      "Added to the variance in the normalisation (above 0).");
  at_least(model.key(
               "latent_norm_eps", [](auto& s) -> auto& { return s.model.latent_norm_eps; },
               "latent: norm_eps of the norms in attention (Moonlight); 0: as norm_eps."),
           0);
  model.choice(
      "norm_place", [](auto& s) -> auto& { return s.model.norm_place; }, {"before", "after", "both"},
      "Whether what enters attention and feed-forward layers is normalised, what leaves them (OLMo 2), or both (Gemma "
      "2).");
  model.key(
      "norm_plus_one", [](auto& s) -> auto& { return s.model.norm_plus_one; },
      "Whether norms multiply by 1 + their weight (Gemma).");
  model.choice(
      "activation", [](auto& s) -> auto& { return s.model.activation; },
      {"relu", "gelu", "swiglu", "clamped_swiglu", "geglu"},
      "Activation of the feed-forward layers and of the experts; clamped_swiglu: (up + 1) gate sigmoid(1.702 gate), "
      "gate at most 7 and up between -7 and 7 (gpt-oss); geglu: gelu(gate) up (Gemma).");
  model.choice(
      "positions", [](auto& s) -> auto& { return s.model.positions; }, {"learned", "rotary"},
      "How a token knows its position.");
  model.key(
      "rope_theta", [](auto& s) -> auto& { return s.model.rope_theta; }, "Base of the rotary angles (above 0).");
  at_least(model.key(
               "rope_local_theta", [](auto& s) -> auto& { return s.model.rope_local_theta; },
               "sliding_window: base of the rotary angles in blocks that have the window, which rope_scaling leaves as "
               "they are (Gemma 3); 0: as in the other blocks."),
           0);
  between(model.key(
              "rotary_channels", [](auto& s) -> auto& { return s.model.rotary_channels; },
              "Channels of a head that rotary positions turn, the first ones, an even number (GLM-4.5, MiniMax-M2); 0: "
              "all."),
          0, 65536);
  declare_rope(model);
  model.key(
      "tie_embeddings", [](auto& s) -> auto& { return s.model.tie_embeddings; },
      "Whether the output layer is the embedding, transposed.");
  at_least(model.key(
               "embedding_scale", [](auto& s) -> auto& { return s.model.embedding_scale; },
               "What the embeddings of tokens are multiplied by (Gemma, Granite)."),
           0);
  at_least(model.key(
               "residual_scale", [](auto& s) -> auto& { return s.model.residual_scale; },
               "What attention and feed-forward layers add to the residual stream is multiplied by it (Granite)."),
           0);
  model.key(
      "head_bias", [](auto& s) -> auto& { return s.model.head_bias; },
      "Whether the logits have a learned bias (Phi-3.5-MoE).");
  at_least(model.key(
               "logit_divisor", [](auto& s) -> auto& { return s.model.logit_divisor; },
               "What logits are divided by (above 0; Granite's logits_scaling)."),
           0);
  at_least(model.key(
               "logit_softcap", [](auto& s) -> auto& { return s.model.logit_softcap; },
               "Logits x become cap tanh(x / cap) (Gemma 2); 0: they stay."),
           0);
  at_least(model.key(
               "dropout", [](auto& s) -> auto& { return s.model.dropout; },
               "Probability that an activation is dropped (below 1)."),
           0);
  at_least(
      model.key(
          "init_std", [](auto& s) -> auto& { return s.model.init_std; }, "Standard deviation of the initial weights."),
      0);
  between(model.key(
              "mtp_depth", [](auto& s) -> auto& { return s.model.mtp_depth; },
              "Multi-token prediction (DeepSeek-V3): tokens beyond the next one that each position also learns to "
              "predict, by a block for each, in training alone."),
          0, 64);
}

void declare_moe(std::vector<CoreKey>& keys) {
  Declarer moe(keys, "moe");
  between(
      moe.key(
          "experts", [](auto& s) -> auto& { return s.moe.experts; }, "Experts of a mixture layer; 0: a dense model."),
      0, 1 << 16);
  between(moe.key(
              "every", [](auto& s) -> auto& { return s.moe.every; },
              "Distance between blocks with experts. 1: every block has them; 2: the second, fourth, ..."),
          1, 1 << 16);
  between(moe.key(
              "first_dense", [](auto& s) -> auto& { return s.moe.first_dense; },
              "The first so many blocks have no experts, whatever every says (DeepSeek)."),
          0, 1 << 16);
  CoreKey& top_k = moe.key(
      "top_k", [](auto& s) -> auto& { return s.moe.top_k; },
      "Experts of a token; 0: as the router implies (switch 1, gshard, topk and bias 2, expert_choice all).");
  top_k.spec.default_value = std::int64_t{0};  // loading replaces 0, so Settings never holds it
  between(top_k, 0, 1 << 16);
  moe.kind<Gate>(
      "router", [](auto& s) -> auto& { return s.moe.router; },
      "How a token chooses experts; expert_choice: how experts choose tokens.");
  moe.choice(
      "score", [](auto& s) -> auto& { return s.moe.score; }, {"softmax", "sigmoid"},
      "What a token's logits become before experts are weighted; sigmoid: topk, bias and expert_choice.");
  at_least(moe.key(
               "capacity_factor", [](auto& s) -> auto& { return s.moe.capacity_factor; },
               "Seats of an expert over its even share of a group's tokens; 0: dropless."),
           0);
  at_least(moe.key(
               "group_tokens", [](auto& s) -> auto& { return s.moe.group_tokens; },
               "Tokens of a group, over which capacity and balance are counted; 0: one sequence."),
           0);
  moe.choice(
      "drop_policy", [](auto& s) -> auto& { return s.moe.drop_policy; }, {"position", "probability"},
      "Which tokens an over-full expert drops: the latest or the least likely.");
  at_least(moe.key(
               "aux_loss", [](auto& s) -> auto& { return s.moe.aux_loss; }, "Coefficient of the load-balance loss."),
           0);
  moe.choice(
      "balance_over", [](auto& s) -> auto& { return s.moe.balance_over; }, {"group", "batch"},
      "Whose load the load-balance loss knows: a group's, or that of a micro-batch over all ranks.");
  at_least(moe.key(
               "z_loss", [](auto& s) -> auto& { return s.moe.z_loss; }, "Coefficient of the router's z loss."),
           0);
  at_least(moe.key(
               "jitter", [](auto& s) -> auto& { return s.moe.jitter; },
               "Half width of the uniform noise that scales the router's input while training (below 1)."),
           0);
  moe.key(
      "normalize_weights", [](auto& s) -> auto& { return s.moe.normalize_weights; },
      "topk, bias: whether the weights of a token's experts are scaled to sum to one.");
  moe.key(
      "weight_scale", [](auto& s) -> auto& { return s.moe.weight_scale; },
      "What the weights of a token's experts are multiplied by, normalised or not (above 0; DeepSeek's "
      "routed_scaling_factor).");
  between(moe.key(
              "expert_groups", [](auto& s) -> auto& { return s.moe.expert_groups; },
              "topk, bias: equal groups of experts, of which a token chooses some first (DeepSeek-V3)."),
          1, 64);
  between(moe.key(
              "groups_per_token", [](auto& s) -> auto& { return s.moe.groups_per_token; },
              "topk, bias: groups of a token, the best by group_score."),
          1, 64);
  moe.choice(
      "group_score", [](auto& s) -> auto& { return s.moe.group_score; }, {"top2_sum", "max"},
      "topk, bias: what ranks groups: the sum of their two best experts (DeepSeek-V3), or their best one "
      "(DeepSeek-V2).");
  between(
      moe.key(
          "sparsemixer_width", [](auto& s) -> auto& { return s.moe.sparsemixer_width; },
          "sparsemixer: experts compete with the best one whose logits fall short of its by at most twice this share "
          "(Phi-3.5-MoE's router_jitter_noise)."),
      0, 1e6);
  at_least(moe.key(
               "bias_update_rate", [](auto& s) -> auto& { return s.moe.bias_update_rate; },
               "bias: what a step adds to the bias of an expert with less than the mean load, and takes from one with "
               "more."),
           0);
  between(moe.key(
              "shared_experts", [](auto& s) -> auto& { return s.moe.shared_experts; },
              "Experts that every token visits besides its own."),
          0, 1 << 16);
  between(moe.key(
              "d_shared", [](auto& s) -> auto& { return s.moe.d_shared; },
              "Width of all shared experts together; 0: shared_experts times d_expert."),
          0, 1 << 24);
  moe.key(
      "shared_gate", [](auto& s) -> auto& { return s.moe.shared_gate; },
      "Whether each token weighs what the shared experts make of it, by a sigmoid of its own (Qwen2-MoE).");
  between(
      moe.key(
          "d_expert", [](auto& s) -> auto& { return s.moe.d_expert; }, "Width of an expert's hidden layer; 0: d_ff."),
      0, 1 << 24);
  moe.key(
      "router_bias", [](auto& s) -> auto& { return s.moe.router_bias; },
      "Whether the router's logits have a learned bias (gpt-oss).");
  moe.key(
      "expert_bias", [](auto& s) -> auto& { return s.moe.expert_bias; },
      "Whether the products of each routed expert have biases (gpt-oss); no fused kernels then.");
  between(moe.key(
              "zero_experts", [](auto& s) -> auto& { return s.moe.zero_experts; },
              "Zero-computation experts that tokens may choose beside the others (MoE++, LongCat-Flash)."),
          0, 1 << 16);
  moe.choice(
      "zero_expert", [](auto& s) -> auto& { return s.moe.zero_expert; }, {"zero", "copy"},
      "What a choice of a zero-computation expert adds: nothing, or the token itself times its weight.");
}

}  // namespace orthant
