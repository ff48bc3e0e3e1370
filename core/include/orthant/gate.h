// Gate: which experts each token goes to, and with which weights. A noun of the catalogue: `moe.router` names one.
//
// A gate chooses from the router's logits; the core multiplies them, seats what was chosen (capacity), moves rows and
// counts. See docs/guides/plugins.md, and router/topk_gate.cpp for the shortest one.
//
// Ownership: the catalogue shares a gate among all layers and all ranks of a process. What differs from layer to layer
// is passed in (GateInput::state). Thread safety: all methods are const and called from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <orthant/abi/gate.h>
#include <orthant/keys.h>
#include <orthant/ops.h>

namespace orthant {

struct MoeSettings;
struct Settings;

// T tokens of one routed layer and micro-batch, in whole groups. E columns of the router: moe.experts experts and,
// behind them, moe.zero_experts that compute nothing (null experts). Those are chosen, counted and balanced like the
// others. The core gives their choices no seat, and adds nothing for them, or the token itself (moe.zero_expert).
struct GateInput {
  Tensor logits;                     // f32 [T, E]
  Tensor valid;                      // u8 [T]; 0: padding
  Tensor index;                      // i64 [T]: the token's place in the global batch
  Tensor token;                      // i32 [T]: its id; undefined unless Gate::reads_tokens
  Tensor state;                      // f32 [E]: of this layer; undefined unless Gate::keeps_state
  RandomKey key;                     // of this layer and step, for chance that depends on the token's index alone
  const MoeSettings* moe = nullptr;  // never null: what the gate's own keys are read from (kind_values)
};

// Shapes and meaning are those of Stream::gate; K is GateConfig::top_k, G the number of groups. Weights may be any
// function of the token's logits: a gate whose weights are not scores of the chosen experts brings `backward` too.
struct GateChoice {
  Tensor expert;  // i32 [T, K]: distinct experts of a token, -1: fewer are wanted; all -1 for padding
  Tensor weight;  // f32 [T, K]; 0 where the expert is -1
  Tensor lse;     // f32 [T]
  Tensor chosen;  // i32 [G, E]
  Tensor share;   // f64 [G, E]
};

// What the gate of one layer learns from a step.
struct GateUpdate {
  Tensor state;  // f32 [E], to be changed
  // i64 [L, 2, E] of all routed layers of the model: choices of the global batch that experts computed (or that zero
  // experts had), and those that were dropped for capacity. This layer's are those at `routed`.
  Tensor loads;
  std::int64_t routed = 0, tokens = 0;  // tokens of the global batch that are not padding
  Tensor factor;                        // f32 [1]: NaN where the step counts for nothing

  Tensor load() const { return loads.rows(routed, 1).view({2, loads.dim(2)}); }
};

// Keys of "topk", "bias" and, of the scores, "expert_choice". Gate::config fills the operations' arguments from them
// for every gate.
struct ChoiceKeys {
  ScoreKind score = ScoreKind::softmax;           // of an expert for a token; sigmoid: as DeepSeek-V3
  bool normalize_weights = true;                  // weights of the chosen experts sum to one (Mixtral)
  std::int64_t expert_groups = 1;                 // a token's experts come from some of these groups of experts
  std::int64_t groups_per_token = 1;              // so many of them
  GroupScore group_score = GroupScore::top2_sum;  // what ranks them
  static const Keys<ChoiceKeys>& keys();
};

class Gate {
 public:
  static constexpr const char* noun = "gate";
  virtual ~Gate() = default;

  // --- what the configuration says of it
  // The keys that it reads beside those that every kind has (keys.h). By default none.
  virtual std::vector<KindKey> keys() const { return {}; }
  // The choices of a token if moe.top_k is 0; 2 by default. All other methods see the result in moe.top_k.
  virtual std::int64_t implied_top_k(const MoeSettings& moe) const;
  // Nothing by default: a gate refuses itself what it takes no notice of ([moe] score, normalize_weights, ...).
  virtual std::vector<Refusal> refusals(const Settings& settings) const;
  // What may surprise, in one sentence; empty: nothing.
  virtual std::string warning(const Settings& settings) const;
  // What the operations of the router are told; Stream::gate_backward, gate_losses and dispatch_plan too. By default it
  // is filled from the settings, with group_tokens resolved (a sequence where moe.group_tokens is 0).
  virtual GateConfig config(const Settings& settings) const;
  // How many experts compute for a token on average, for the cost of a layer: by default moe.top_k times the share of
  // the columns that are experts which compute.
  virtual double experts_of_token(const MoeSettings& moe) const;
  // Whether a token's experts are those with the K greatest logits, whatever else is set. An export can then be loaded
  // by other systems.
  virtual bool greatest_logits(const MoeSettings& moe) const;
  virtual bool reads_tokens(const MoeSettings& moe) const;

  // --- the step
  // Enqueues work on `s` that writes every tensor of `to`. Runs in training and in validation; a dry run calls it too.
  virtual void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const = 0;
  // dlogits f32 [T, E] = the gradient of sum(dweight * weight) + aux_scale * balance + z_scale * z by the logits, 0 for
  // padding. `made` has lse, chosen and expert alone, as `choose` wrote them; dweight is 0 for a choice that lost its
  // seat. By default Stream::gate_backward, which holds for every gate whose weights are scores of the chosen
  // experts.
  virtual void backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                        float aux_scale, float z_scale, const GateConfig& config, Stream& s) const;
  // balance, z f64 [1] += this micro-batch's, whose gradients `backward` adds. By default Stream::gate_losses. A
  // coefficient that adapts is a number in the gate's state, and multiplies both.
  virtual void losses(const Tensor& balance, const Tensor& z, const GateChoice& made, const GateInput& from,
                      const GateConfig& config, Stream& s) const;

  // --- state: f32 [E] for each routed layer, zero at first, the same on every rank, saved in checkpoints
  virtual bool keeps_state(const MoeSettings& moe) const;
  // Called once a step for each layer, after the optimizer. REQUIRES: what `state` becomes depends on `of` alone, and
  // so stays the same on every rank; nothing changes if *of.factor is NaN.
  virtual void update(const GateUpdate& of, const Settings& settings, Stream& s) const;
};

// The gate that the settings name. Errors: ConfigError listing the gates that there are.
const Gate& gate_of(const Settings& settings);

}  // namespace orthant
