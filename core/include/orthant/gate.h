// Gate: which experts each token goes to, and with which weights. A noun of the catalogue: `moe.router` names one.
//
// A gate chooses from the router's logits; the core multiplies them, seats what was chosen (capacity), moves rows and
// counts. See docs/plugins.md, and router/topk_gate.cpp for the shortest one.
//
// Ownership: the catalogue shares a gate among all layers and all ranks of a process. What differs from layer to layer
// is passed in (GateInput::state). Thread safety: all methods are const and called from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <orthant/ops.h>
#include <orthant/settings.h>

namespace orthant {

// T tokens of one routed layer and micro-batch, in whole groups; E experts.
struct GateInput {
  Tensor logits;  // f32 [T, E]
  Tensor valid;   // u8 [T]; 0: padding
  Tensor index;   // i64 [T]: the token's place in the global batch
  Tensor token;   // i32 [T]: its id; undefined unless Gate::reads_tokens
  Tensor state;   // f32 [E]: of this layer; undefined unless Gate::keeps_state
  RandomKey key;  // of this layer and step, for chance that depends on the token's index alone
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

// What a gate cannot work with in a configuration.
struct GateRefusal {
  std::vector<std::string> keys;  // "moe.top_k": it is told at the first that somebody wrote
  std::string message;            // "[moe] top_k: ..."
  std::string advice;
};

class Gate {
 public:
  static constexpr const char* noun = "gate";
  virtual ~Gate() = default;

  // --- what the configuration says of it
  // The choices of a token if moe.top_k is 0; 2 by default. All other methods see the result in moe.top_k.
  virtual std::int64_t implied_top_k(const MoeSettings& moe) const;
  // Nothing by default: a gate refuses itself what it takes no notice of ([moe] score, normalize_weights, ...).
  virtual std::vector<GateRefusal> refusals(const Settings& settings) const;
  // What may surprise, in one sentence; empty: nothing.
  virtual std::string warning(const Settings& settings) const;
  // What the operations of the router are told; Stream::gate_backward, gate_losses and dispatch_plan too. By default it
  // is filled from the settings, with group_tokens resolved (a sequence where moe.group_tokens is 0).
  virtual GateConfig config(const Settings& settings) const;
  // How many experts compute for a token on average, for the cost of a layer: moe.top_k by default.
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
  // seat. By default Stream::gate_backward, which holds for every
  // gate whose weights are scores of the chosen experts.
  virtual void backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                        float aux_scale, float z_scale, const GateConfig& config, Stream& s) const;
  // balance, z f64 [1] += this micro-batch's. By default Stream::gate_losses.
  virtual void losses(const Tensor& balance, const Tensor& z, const GateChoice& made, const GateConfig& config,
                      Stream& s) const;

  // --- state: f32 [E] for each routed layer, zero at first, the same on every rank, saved in checkpoints
  virtual bool keeps_state(const MoeSettings& moe) const;
  // Called once a step, after the optimizer. load i64 [2, E]: choices of the global batch that experts computed, and
  // those that were dropped for capacity. REQUIRES: `state` depends on `state` and `load` alone, and so stays the same
  // on every rank; nothing changes if *factor f32 [1] is NaN, because such a step counts for nothing.
  virtual void update(const Tensor& state, const Tensor& load, const Tensor& factor, const Settings& settings,
                      Stream& s) const;
};

// The gate that the settings name. Errors: ConfigError listing the gates that there are.
const Gate& gate_of(const Settings& settings);

}  // namespace orthant
