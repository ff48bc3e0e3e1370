#include "core/config/validate_model.h"

#include <orthant/gate.h>
#include <orthant/part.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/arch/decoder.h"
#include "core/config/refusals_of_heads.h"
#include "core/config/validate_rope.h"
#include "router/rules/gate.h"

namespace orthant {
namespace {

void check_attention(const Settings& s, Rules& rules) {
  const ModelSettings& m = s.model;
  rules.expect(m.sliding_window > 0 || m.full_attention_every == 0,
               {"model.full_attention_every", "model.sliding_window"},
               "[model] full_attention_every: there is no window that some blocks could do without",
               "write sliding_window, or leave full_attention_every out");
  rules.expect(m.full_attention_every != 1, {"model.full_attention_every", "model.sliding_window"},
               "[model] full_attention_every: with 1 no block has the window",
               "leave sliding_window and full_attention_every out, or write 2 or more");
  for (const Refusal& refusal : s.catalogue->has<AttentionPart>(m.attention)
                                    ? s.catalogue->get<AttentionPart>(m.attention).refusals(s)
                                    : refusals_of_heads(s)) {
    rules.expect(false, refusal.keys, refusal.message, refusal.advice);
  }
}

void check_group_tokens(const Settings& s, Rules& rules) {
  const std::int64_t group = s.moe.group_tokens.written();
  const std::int64_t length = s.data.sequence_length;
  const std::vector<std::string> keys = {"moe.group_tokens", "data.sequence_length", "batch.micro_batch",
                                         "batch.sequences"};
  if (group == 0 || length % group == 0) {
    return;
  }
  rules.expect(group % length == 0, keys,
               fmt::format("[moe] group_tokens: {} neither divides the sequence length {} nor is a multiple of it",
                           group, length),
               fmt::format("write {}, a multiple of {}, or 0 for one sequence",
                           divisors_near(length, std::min(group, length)), length));
  // A group lies within one micro-batch; without micro_batch its size depends on the layout, but divides sequences.
  const std::int64_t micro = micro_batch_of(s, s.batch.sequences);
  const std::int64_t sequences = group / length;
  rules.expect(group % length != 0 || micro % sequences == 0, keys,
               fmt::format("[moe] group_tokens: {} is {} sequences, which do not divide the {} of a {}", group,
                           sequences, micro, s.batch.micro_batch != 0 ? "micro-batch" : "step"),
               fmt::format("write {} times a divisor of {}", length, micro));
}

// experts = 0, written, makes a model dense whatever else its table says: the dense twin of a mixture. Where nobody
// wrote experts, they were forgotten.
void refuse_moe_without_experts(const Config& config, Rules& rules) {
  std::vector<std::string> written, names;
  for (const Table& table : config.tables) {
    for (const auto& [key, entry] : table.entries()) {
      if (table.path() == "moe" && entry.origin != "default") {
        written.push_back("moe." + key);
        names.push_back(key);
      }
    }
  }
  if (!rules.sound({"moe.experts"})) {
    return;
  }
  rules.expect(config.origin("moe.experts") != "default" || written.empty(), written,
               fmt::format("[moe] {}: nothing without experts, and nobody wrote how many", fmt::join(names, ", ")),
               "write experts = N in [moe], or experts = 0 for a dense model");
}

void check_gate(const Gate& gate, const Settings& s, Rules& rules) {
  const MoeSettings& m = s.moe;
  const bool tokens_choose = !gate.config(s).experts_choose;
  rules.expect(m.top_k <= m.columns() || !tokens_choose, {"moe.top_k", "moe.experts", "moe.router"},
               fmt::format("[moe] top_k: {} of {} experts cannot be chosen", m.top_k, m.columns()),
               fmt::format("write a top_k of at most {}, or at least {} experts", m.columns(), m.top_k));
  rules.expect(
      m.zero_experts == 0 || tokens_choose, {"moe.zero_experts", "moe.router"},
      fmt::format("[moe] zero_experts: with router \"{}\" experts choose, and these have no use for a token", m.router),
      "write another router, or leave zero_experts out");
  rules.expect(m.top_k <= max_top_k || !tokens_choose, {"moe.top_k"},
               fmt::format("[moe] top_k: {} is above the {} experts that a token may choose", m.top_k, max_top_k),
               fmt::format("write a top_k of at most {}", max_top_k));
  for (const Refusal& refusal : gate.refusals(s)) {
    rules.expect(false, refusal.keys, refusal.message, refusal.advice);
  }
}

}  // namespace

namespace {

// Numbers that something is multiplied or divided by, or cut off at.
void check_factors(const Settings& s, Rules& rules) {
  const ModelSettings& m = s.model;
  const auto expect = [&](const char* key, double value, bool zero_allowed) {
    rules.expect((zero_allowed && value == 0) || (positive_float(value) && finite_float(value)),
                 {fmt::format("model.{}", key)},
                 fmt::format("[model] {}: {} is 0 or infinite in single precision", key, value),
                 "write a number above 0, or leave it out");
  };
  expect("embedding_scale", m.embedding_scale, false);
  expect("residual_scale", m.residual_scale, false);
  expect("logit_divisor", m.logit_divisor, false);
  expect("logit_softcap", m.logit_softcap, true);
  expect("attention_scale", m.attention_scale, true);
  rules.expect(!m.head_bias || m.mtp_depth == 0, {"model.head_bias", "model.mtp_depth"},
               "[model] head_bias: the depths of multi-token prediction have no such bias",
               "leave mtp_depth or head_bias out");
}

}  // namespace

void check_model(const Settings& s, Rules& rules) {
  const ModelSettings& m = s.model;
  check_attention(s, rules);
  check_factors(s, rules);
  rules.expect(s.data.source != "text" || s.data.tokenizer != "bytes" || m.vocab_size >= 256,
               {"model.vocab_size", "data.tokenizer"},
               fmt::format("[model] vocab_size: {} tokens are too few for bytes", m.vocab_size), "write 256 or more");
  rules.expect(m.dropout < 1, {"model.dropout"}, fmt::format("[model] dropout: {} drops everything", m.dropout),
               "write a number of at least 0 and below 1");
  rules.expect(positive_float(m.norm_eps), {"model.norm_eps"},
               fmt::format("[model] norm_eps: {} is not above 0 in single precision", m.norm_eps),
               "write a small number such as 1e-5");
  rules.expect(finite_float(m.norm_eps), {"model.norm_eps"},
               fmt::format("[model] norm_eps: {} is infinite in single precision", m.norm_eps),
               "write a small number such as 1e-5");
  rules.expect(m.mtp_depth < s.data.sequence_length, {"model.mtp_depth", "data.sequence_length"},
               fmt::format("[model] mtp_depth: no sequence of {} positions has a token {} places beyond the next one",
                           s.data.sequence_length, m.mtp_depth),
               fmt::format("write less than {}", s.data.sequence_length));
  rules.expect(finite_float(s.train.mtp_weight), {"train.mtp_weight"},
               fmt::format("[train] mtp_weight: {} is infinite in single precision", s.train.mtp_weight),
               "write a number such as 0.3");
  check_rope(s, rules);
}

void check_moe(const Config& config, Rules& rules) {
  const Settings& s = config.settings;
  const MoeSettings& m = s.moe;
  if (m.experts == 0) {
    return refuse_moe_without_experts(config, rules);
  }
  if (s.catalogue->has<Gate>(m.router)) {
    check_gate(gate_of(s), s, rules);
  }
  const bool other = s.model.kind != decoder_kind;  // which says itself where its blocks have experts
  rules.expect(other || m.every <= s.model.layers, {"moe.every", "model.layers"},
               fmt::format("[moe] every: no block of {} would have experts with every = {}", s.model.layers, m.every),
               fmt::format("write an integer from 1 to {}, or experts = 0", s.model.layers));
  rules.expect(other || m.every > s.model.layers || m.first_dense < s.model.layers / m.every * m.every,
               {"moe.first_dense", "moe.every", "model.layers"},
               fmt::format("[moe] first_dense: no block of {} would have experts with first_dense = {} and every = {}",
                           s.model.layers, m.first_dense, m.every),
               fmt::format("write an integer from 0 to {}, or experts = 0", s.model.layers / m.every * m.every - 1));
  rules.expect(positive_float(m.weight_scale), {"moe.weight_scale"},
               fmt::format("[moe] weight_scale: {} is not above 0 in single precision", m.weight_scale),
               "write a number above 0, such as 2.5");
  rules.expect(finite_float(m.weight_scale), {"moe.weight_scale"},
               fmt::format("[moe] weight_scale: {} is infinite in single precision", m.weight_scale),
               "write a number such as 2.5");
  const auto keys = read_keys<ChoiceKeys>(m.own);
  rules.expect(keys.expert_groups > 1 || keys.group_score == GroupScore::top2_sum,
               {"moe.group_score", "moe.expert_groups"},
               "[moe] group_score: there is one group of experts, and nothing to rank",
               "write expert_groups, or leave group_score out");
  rules.expect(m.shared_experts > 0 || m.d_shared == 0, {"moe.d_shared", "moe.shared_experts"},
               "[moe] d_shared: there are no shared experts", "write shared_experts = 1, or leave d_shared out");
  rules.expect(m.shared_experts > 0 || !m.shared_gate, {"moe.shared_gate", "moe.shared_experts"},
               "[moe] shared_gate: there are no shared experts", "write shared_experts = 1, or leave shared_gate out");
  rules.expect(m.zero_experts > 0 || m.zero_expert == ZeroExpert::zero, {"moe.zero_expert", "moe.zero_experts"},
               "[moe] zero_expert: there are no zero-computation experts",
               "write zero_experts = N, or leave zero_expert out");
  rules.expect(m.zero_experts == 0 || keys.expert_groups == 1, {"moe.zero_experts", "moe.expert_groups"},
               "[moe] zero_experts: they belong to no group of experts", "leave out expert_groups, or zero_experts");
  rules.expect(m.zero_experts == 0 || s.run.record_routing == 0, {"run.record_routing", "moe.zero_experts"},
               "[run] record_routing: routing to zero-computation experts cannot be recorded",
               "leave record_routing out");
  rules.expect(m.jitter < 1, {"moe.jitter"}, fmt::format("[moe] jitter: {} could turn the input's sign", m.jitter),
               "write a number of at least 0 and below 1, such as 0.01");
  check_group_tokens(s, rules);
}

}  // namespace orthant
