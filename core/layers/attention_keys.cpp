// What the kinds of attention say of the configuration: the keys that they read, and what they refuse.
#include <utility>

#include "core/arch/rotary.h"
#include "core/config/refusals_of_heads.h"
#include "core/config/rules.h"
#include "core/layers/attention.h"
#include "core/layers/latent_attention.h"

namespace orthant {
namespace {

// A number that something is multiplied or divided by, or cut off at; 0: it is not.
std::string unusable_factor(double value) {
  const bool usable = value == 0 || (positive_float(value) && finite_float(value));
  return usable
             ? ""
             : fmt::format("{} is 0 or infinite in single precision\nwrite a number above 0, or leave it out", value);
}

std::vector<KindKey> and_rotary(std::vector<KindKey> keys) {
  const std::vector<KindKey> rotary = RotaryKeys::keys().declared();
  keys.insert(keys.end(), rotary.begin(), rotary.end());
  return keys;
}

// Says that attention `kind` takes no notice of model.`key`, unless that is `same` as by default.
void refuse_other(Refusals& to, const std::string& kind, const char* key, bool same, const char* advice) {
  to.expect(same, {fmt::format("model.{}", key), "model.attention"},
            fmt::format("[model] {}: attention \"{}\" takes no notice of it", key, kind), advice);
}

// Of all but latent attention.
void refuse_of_heads(Refusals& to, const Settings& s) {
  const auto keys = read_keys<MultiHeadKeys>(s.model.own);
  const std::vector<Refusal> of_heads = refusals_of_heads(s);
  to.found.insert(to.found.end(), of_heads.begin(), of_heads.end());
  to.expect(keys.qk_norm || keys.qk_norm_over == QkNormOver::head, {"model.qk_norm_over", "model.qk_norm"},
            "[model] qk_norm_over: queries and keys are not normalised",
            "write qk_norm = true, or leave qk_norm_over out");
  to.expect(keys.qk_norm || !keys.qk_norm_rotated, {"model.qk_norm_rotated", "model.qk_norm"},
            "[model] qk_norm_rotated: queries and keys are not normalised",
            "write qk_norm = true, or leave qk_norm_rotated out");
  to.expect(read_keys<LatentKeys>(s.model.own).latent_norm_eps == 0, {"model.latent_norm_eps", "model.attention"},
            "[model] latent_norm_eps: only attention \"latent\" has such norms", "leave it out");
  to.expect(keys.attention_softcap == 0 || s.run.device == "cpu" || s.run.device == "guarded",
            {"model.attention_softcap", "run.device"},
            fmt::format("[model] attention_softcap: the device \"{}\" does not compute it", s.run.device),
            "write device = \"cpu\" in [run], or leave it out");
}

}  // namespace

const Keys<MultiHeadKeys>& MultiHeadKeys::keys() {
  static const auto all =
      Keys<MultiHeadKeys>()
          .add("qk_norm", &MultiHeadKeys::qk_norm,
               "multi_head: whether queries and keys are normalised, by RMSNorm before rotation.")
          .after("attention")
          .choice("qk_norm_over", &MultiHeadKeys::qk_norm_over, {"head", "all"},
                  "qk_norm: each head by itself, with one weight for all (Qwen3); or all heads of a token as one row "
                  "(OLMoE), which needs whole heads on every rank.")
          .add("qk_norm_rotated", &MultiHeadKeys::qk_norm_rotated,
               "qk_norm: whether they are normalised after they are rotated (Hunyuan), not before.")
          .add("biases", &MultiHeadKeys::biases, "multi_head: whether queries, keys and values have biases.")
          .add("output_bias", &MultiHeadKeys::output_bias,
               "multi_head: whether the projection behind attention has a bias.")
          .add("attention_sinks", &MultiHeadKeys::attention_sinks,
               "multi_head: whether each query head has a learned score that joins its softmax, with no value "
               "(gpt-oss).")
          .add("attention_softcap", &MultiHeadKeys::attention_softcap,
               "multi_head: scores s become cap tanh(s / cap) (Gemma 2); 0: they stay. On CPUs alone.", at_least(0))
          .after("attention_scale")
          .refuse([](const MultiHeadKeys& keys) { return unusable_factor(keys.attention_softcap); });
  return all;
}

const Keys<LatentKeys>& LatentKeys::keys() {
  static const auto all =
      Keys<LatentKeys>()
          .add("q_lora_rank", &LatentKeys::q_lora_rank,
               "latent: width of compressed queries; 0: they are not compressed.", between(0, 1 << 20))
          .after("attention_sinks")
          .add("kv_lora_rank", &LatentKeys::kv_lora_rank, "latent: width of compressed keys and values.",
               between(0, 1 << 20))
          .add("qk_nope_head_dim", &LatentKeys::qk_nope_head_dim,
               "latent: channels of a query and key head that are not rotated.", between(0, 1 << 16))
          .add("qk_rope_head_dim", &LatentKeys::qk_rope_head_dim,
               "latent: channels of a query and key head that are rotated; those of a key are the same for all heads.",
               between(0, 1 << 16))
          .add("v_head_dim", &LatentKeys::v_head_dim, "latent: channels of a value head, at most those of a key head.",
               between(0, 1 << 16))
          .add("latent_norm_eps", &LatentKeys::latent_norm_eps,
               "latent: norm_eps of the norms in attention (Moonlight); 0: as norm_eps.", at_least(0))
          .after("norm_eps")
          .refuse([](const LatentKeys& keys) { return unusable_factor(keys.latent_norm_eps); });
  return all;
}

std::vector<Refusal> AttentionPart::refusals(const Settings& s) const {
  const ModelSettings& m = s.model;
  const auto keys = read_keys<MultiHeadKeys>(m.own);
  Refusals refused;
  const char* const leave = "leave it out, or write attention = \"multi_head\"";
  const char* const leave_both = "leave it out, or write attention = \"multi_head\" or \"latent\"";
  refuse_other(refused, m.attention, "attention_sinks", !keys.attention_sinks, leave);
  refuse_other(refused, m.attention, "attention_softcap", keys.attention_softcap == 0, leave);
  refuse_other(refused, m.attention, "attention_scale", m.attention_scale == 0, leave_both);
  refuse_other(refused, m.attention, "full_attention_every", m.full_attention_every == 0, leave_both);
  refuse_of_heads(refused, s);
  return refused.found;
}

std::int64_t AttentionPart::head_dim(const Settings& s) const {
  return s.model.head_dim.or_else(s.model.d_model / s.model.heads);
}

std::int64_t AttentionPart::rotary_channels(const Settings& s) const {
  return s.model.rotary_channels.or_else(head_dim(s));
}

std::vector<KindKey> MultiHeadAttention::keys() const {
  return and_rotary(MultiHeadKeys::keys().declared());
}

std::vector<Refusal> MultiHeadAttention::refusals(const Settings& s) const {
  if (s.model.attention != "multi_head") {  // a plugin's name for it
    return AttentionPart::refusals(s);
  }
  const auto keys = read_keys<LatentKeys>(s.model.own);
  Refusals refused;
  const char* const advice = "write attention = \"latent\", or leave it out";
  refuse_other(refused, "multi_head", "q_lora_rank", keys.q_lora_rank == 0, advice);
  refuse_other(refused, "multi_head", "kv_lora_rank", keys.kv_lora_rank == 0, advice);
  refuse_other(refused, "multi_head", "qk_nope_head_dim", keys.qk_nope_head_dim == 0, advice);
  refuse_other(refused, "multi_head", "qk_rope_head_dim", keys.qk_rope_head_dim == 0, advice);
  refuse_other(refused, "multi_head", "v_head_dim", keys.v_head_dim == 0, advice);
  refuse_of_heads(refused, s);
  return refused.found;
}

std::vector<KindKey> MultiHeadLatentAttention::keys() const {
  return and_rotary(LatentKeys::keys().declared());
}

std::int64_t MultiHeadLatentAttention::head_dim(const Settings& s) const {
  const auto keys = read_keys<LatentKeys>(s.model.own);
  return keys.qk_nope_head_dim + keys.qk_rope_head_dim;
}

std::int64_t MultiHeadLatentAttention::rotary_channels(const Settings& s) const {
  return read_keys<LatentKeys>(s.model.own).qk_rope_head_dim;
}

std::vector<Refusal> MultiHeadLatentAttention::refusals(const Settings& s) const {
  const ModelSettings& m = s.model;
  const auto other = read_keys<MultiHeadKeys>(m.own);
  const auto keys = read_keys<LatentKeys>(m.own);
  Refusals refused;
  const auto refuse = [&](const char* key, bool same, const char* advice = "leave it out") {
    refuse_other(refused, "latent", key, same, advice);
  };
  refuse("kv_heads", m.kv_heads.or_else(m.heads) == m.heads, "every head has keys and values: leave it out");
  refuse("head_dim", m.head_dim == 0, "write qk_nope_head_dim, qk_rope_head_dim and v_head_dim");
  refuse("rotary_channels", m.rotary_channels == 0, "write qk_rope_head_dim");
  refuse("qk_norm", !other.qk_norm, "what is compressed is normalised as it is: leave it out");
  refuse("qk_norm_over", other.qk_norm_over == QkNormOver::head);
  refuse("qk_norm_rotated", !other.qk_norm_rotated);
  refuse("attention_softcap", other.attention_softcap == 0);
  refuse("biases", !other.biases);
  refuse("output_bias", !other.output_bias);
  refuse("attention_sinks", !other.attention_sinks);
  const auto need = [&](const char* key, std::int64_t value) {
    refused.expect(value > 0, {fmt::format("model.{}", key), "model.attention"},
                   fmt::format("[model] {}: attention \"latent\" needs it", key),
                   fmt::format("write {} = N, N above 0, or attention = \"multi_head\"", key));
  };
  need("kv_lora_rank", keys.kv_lora_rank);
  need("qk_nope_head_dim", keys.qk_nope_head_dim);
  need("qk_rope_head_dim", keys.qk_rope_head_dim);
  need("v_head_dim", keys.v_head_dim);
  refused.expect(keys.qk_rope_head_dim % 2 == 0, {"model.qk_rope_head_dim"},
                 fmt::format("[model] qk_rope_head_dim: rotary positions turn pairs, {} is odd", keys.qk_rope_head_dim),
                 "write an even number");
  refused.expect(keys.v_head_dim <= head_dim(s),
                 {"model.v_head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim"},
                 fmt::format("[model] v_head_dim: {} channels are more than the {} + {} of a key head", keys.v_head_dim,
                             keys.qk_nope_head_dim, keys.qk_rope_head_dim),
                 fmt::format("write at most {}", head_dim(s)));
  return refused.found;
}

}  // namespace orthant
