// The gate and the seats of one routed layer over recorded logits, by the operations that training runs.
#pragma once

#include <orthant/device.h>
#include <orthant/gate.h>

#include "apps/route/recorded.h"

namespace orthant {

// T tokens in whole groups, E experts, K choices. Thread safety: none.
class GatePass {
 public:
  // settings: the run's, or changed in [moe] (but for experts and every). All three outlive this.
  // Errors: ConfigError where the recording has too few logits of a token for that router.
  GatePass(const RecordedStep& step, const Settings& settings, Stream& s);

  // The tokens and the layer that the methods below are about. Makes all tensors.
  void load(const RecordedTokens& of, const RecordedLayer& layer);
  // Forward: choices and seats.
  void decide();
  // What training adds to it: the losses, and the gradient of the logits. REQUIRES: decide.
  void learn();

  const GateConfig& config() const { return config_; }
  const Tensor& expert() const { return choice_.expert; }  // i32 [T, K]
  const Tensor& row() const { return row_; }               // i32 [T, K], -1: no seat
  const Tensor& kept() const { return kept_; }             // i32 [E]
  const Tensor& dropped() const { return dropped_; }       // i32 [E], by capacity

 private:
  const RecordedStep& step_;
  const Settings& settings_;
  const Gate& gate_;
  const GateConfig config_;
  Stream& s_;
  GateInput from_;
  GateChoice choice_;
  Tensor row_, source_, offset_, kept_, dropped_;
  Tensor dlogits_, dweight_, losses_;  // f32 [T, E], f32 [T, K], f64 [2, 1]
};

}  // namespace orthant
