#include "core/config/model_keys.h"

#include <orthant/gate.h>
#include <orthant/model.h>
#include <orthant/part.h>

#include "core/config/declarer.h"

namespace orthant {

void declare_model(std::vector<CoreKey>& keys) {
  Declarer model(keys, "model", &Settings::model);
  model.kind<ModelKind>("kind", &ModelSettings::kind,
                        "What the model is: a chain of embedding, blocks and head, or what a plugin brings.");
  model.key("layers", &ModelSettings::layers, "Transformer blocks.", between(1, 1 << 16));
  model.key("d_model", &ModelSettings::d_model, "Width of the residual stream.", between(1, 1 << 20));
  model.key("heads", &ModelSettings::heads, "Query heads of the attention.", between(1, 1 << 16));
  model.key("kv_heads", &ModelSettings::kv_heads,
            "Key and value heads, shared by groups of query heads; 0: as many as heads.", between(0, 1 << 16));
  model.key("head_dim", &ModelSettings::head_dim, "Width of a head; 0: d_model divided by heads.", between(0, 1 << 16));
  model.kind<AttentionPart>("attention", &ModelSettings::attention, "What attention is made of.");
  model.key("sliding_window", &ModelSettings::sliding_window,
            "Tokens that a token sees, the last ones, itself included; 0: all before it.", between(0, 1 << 24));
  model.key("full_attention_every", &ModelSettings::full_attention_every,
            "sliding_window: distance between blocks without it. 2: the second, fourth, ... (gpt-oss); 0: every block "
            "has the window.",
            between(0, 1 << 16));
  model.key("attention_scale", &ModelSettings::attention_scale,
            "What the products of queries and keys are multiplied by; 0: 1 / sqrt(channels of a key head).",
            at_least(0));
  model.kind<FfnPart>("ffn", &ModelSettings::ffn, "What the dense feed-forward layers are made of.");
  model.key("d_ff", &ModelSettings::d_ff, "Width of the dense feed-forward layer; 0: 4 times d_model.",
            between(0, 1 << 24));
  model.key("vocab_size", &ModelSettings::vocab_size,
            "Tokens of the vocabulary; 0: those of data.tokenizer, or of the token files.", between(0, 1 << 28));
  model.choice("norm", &ModelSettings::norm, {"layernorm", "rmsnorm"}, "Normalisation.");
  model.key("norm_eps", &ModelSettings::norm_eps, "Added to the variance in the normalisation (above 0).");
  model.choice("norm_place", &ModelSettings::norm_place, {"before", "after", "both"},
               "Whether what enters attention and feed-forward layers is normalised, what leaves them (OLMo 2), or "
               "both (Gemma 2).");
  model.key("norm_plus_one", &ModelSettings::norm_plus_one, "Whether norms multiply by 1 + their weight (Gemma).");
  model.choice("activation", &ModelSettings::activation, {"relu", "gelu", "swiglu", "clamped_swiglu", "geglu"},
               "Activation of the feed-forward layers and of the experts; clamped_swiglu: (up + 1) gate sigmoid(1.702 "
               "gate), gate at most 7 and up between -7 and 7 (gpt-oss); geglu: gelu(gate) up (Gemma).");
  model.choice("positions", &ModelSettings::positions, {"learned", "rotary"}, "How a token knows its position.");
  model.key(
      "rotary_channels", &ModelSettings::rotary_channels,
      "Channels of a head that rotary positions turn, the first ones, an even number (GLM-4.5, MiniMax-M2); 0: all.",
      between(0, 65536));
  model.key("tie_embeddings", &ModelSettings::tie_embeddings, "Whether the output layer is the embedding, transposed.");
  model.key("embedding_scale", &ModelSettings::embedding_scale,
            "What the embeddings of tokens are multiplied by (Gemma, Granite).", at_least(0));
  model.key("residual_scale", &ModelSettings::residual_scale,
            "What attention and feed-forward layers add to the residual stream is multiplied by it (Granite).",
            at_least(0));
  model.key("head_bias", &ModelSettings::head_bias, "Whether the logits have a learned bias (Phi-3.5-MoE).");
  model.key("logit_divisor", &ModelSettings::logit_divisor,
            "What logits are divided by (above 0; Granite's logits_scaling).", at_least(0));
  model.key("logit_softcap", &ModelSettings::logit_softcap,
            "Logits x become cap tanh(x / cap) (Gemma 2); 0: they stay.", at_least(0));
  model.key("dropout", &ModelSettings::dropout, "Probability that an activation is dropped (below 1).", at_least(0));
  model.key("init_std", &ModelSettings::init_std, "Standard deviation of the initial weights.", at_least(0));
  model.key("mtp_depth", &ModelSettings::mtp_depth,
            "Multi-token prediction (DeepSeek-V3): tokens beyond the next one that each position also learns to "
            "predict, by a block for each, in training alone.",
            between(0, 64));
}

void declare_moe(std::vector<CoreKey>& keys) {
  Declarer moe(keys, "moe", &Settings::moe);
  moe.key("experts", &MoeSettings::experts, "Experts of a mixture layer; 0: a dense model.", between(0, 1 << 16));
  moe.key("every", &MoeSettings::every,
          "Distance between blocks with experts. 1: every block has them; 2: the second, fourth, ...",
          between(1, 1 << 16));
  moe.key("first_dense", &MoeSettings::first_dense,
          "The first so many blocks have no experts, whatever every says (DeepSeek).", between(0, 1 << 16));
  moe.key("top_k", &MoeSettings::top_k,
          "Experts of a token; 0: as the router implies (switch 1, gshard, topk and bias 2, expert_choice all).",
          between(0, 1 << 16))
      .spec.default_value = std::int64_t{0};  // loading replaces 0, so Settings never holds it
  moe.kind<Gate>("router", &MoeSettings::router,
                 "How a token chooses experts; expert_choice: how experts choose tokens.");
  moe.key("capacity_factor", &MoeSettings::capacity_factor,
          "Capacity of an expert, as a multiple of its even share of a group's choices; 0: dropless.", at_least(0));
  moe.key("group_tokens", &MoeSettings::group_tokens,
          "Tokens of a group, over which capacity and balance are counted; 0: one sequence.", at_least(0));
  moe.choice("drop_policy", &MoeSettings::drop_policy, {"position", "probability"},
             "Which tokens an over-full expert drops: the latest or the least likely.");
  moe.key("aux_loss", &MoeSettings::aux_loss, "Coefficient of the load-balance loss.", at_least(0));
  moe.choice("balance_over", &MoeSettings::balance_over, {"group", "batch"},
             "Whose load the load-balance loss knows: a group's, or that of a micro-batch over all ranks.");
  moe.key("z_loss", &MoeSettings::z_loss, "Coefficient of the router's z loss.", at_least(0));
  moe.key("jitter", &MoeSettings::jitter,
          "Half width of the uniform noise that scales the router's input while training (below 1).", at_least(0));
  moe.key("weight_scale", &MoeSettings::weight_scale,
          "What the weights of a token's experts are multiplied by, normalised or not (above 0; DeepSeek's "
          "routed_scaling_factor).");
  moe.key("shared_experts", &MoeSettings::shared_experts, "Experts that every token visits besides its own.",
          between(0, 1 << 16));
  moe.key("d_shared", &MoeSettings::d_shared, "Width of all shared experts together; 0: shared_experts times d_expert.",
          between(0, 1 << 24));
  moe.key("shared_gate", &MoeSettings::shared_gate,
          "Whether each token weighs what the shared experts make of it, by a sigmoid of its own (Qwen2-MoE).");
  moe.key("d_expert", &MoeSettings::d_expert, "Width of an expert's hidden layer; 0: d_ff.", between(0, 1 << 24));
  moe.key("router_bias", &MoeSettings::router_bias, "Whether the router's logits have a learned bias (gpt-oss).");
  moe.key("expert_bias", &MoeSettings::expert_bias,
          "Whether the products of each routed expert have biases (gpt-oss); no fused kernels then.");
  moe.key("zero_experts", &MoeSettings::zero_experts,
          "Zero-computation experts that tokens may choose beside the others (MoE++, LongCat-Flash).",
          between(0, 1 << 16));
  moe.choice("zero_expert", &MoeSettings::zero_expert, {"zero", "copy"},
             "What a choice of a zero-computation expert adds: nothing, or the token itself times its weight.");
}

}  // namespace orthant
