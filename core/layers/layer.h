// What the core's layers need of a step beside a StepContext: the sums over it. The layers themselves: orthant/model.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <orthant/blocks.h>
#include <orthant/model.h>
#include <orthant/part.h>
#include <orthant/plan.h>
#include <orthant/seams.h>

namespace orthant {

class LatentCore;     // core/layers/latent_core.h
class RoutingTap;     // router/routing_tap.h
class Objective;      // orthant/objective.h
class TeacherLogits;  // orthant/objective.h

// An objective of the model in a step.
struct ObjectiveStep {
  const Objective* objective = nullptr;
  std::string name;
  Tensor sums;                       // f64 [Objective::sums]
  std::vector<std::int64_t> counts;  // of the global batch
};

// What the experts of a block decide in its forward pass, kept for the second one of Recompute::full.
struct ExpertDecisions {
  Saved kept;
  bool again = false;  // the second pass: it takes them from here
};

// Sums over the tokens of a step on this rank.
struct StepSums {
  // Some ranks see the same tokens: one of them counts (Plan::counts_tokens), the others keep theirs to themselves.
  // The head's objective first, then that of the layers behind it. None: cross entropy is all that is asked for.
  std::vector<ObjectiveStep> objectives;
  Tensor loss;        // f64 [1]: the first sum of the first objective; without one of -log p over counted tokens
  Tensor token_loss;  // f32 [T] without objectives: -log p of each token, 0 of those that do not count; undefined:
                      // nobody asks
  Tensor balance, z;  // f64 [1] over all routed layers
  Tensor choices;     // i64 [routed layers of the model, 2, E]: choices kept, and dropped for capacity
  // i32, as `choices`: what each router of a micro-batch in training has seated. Model::forward adds them up, once for
  // all the layers that it runs.
  Tensor counts;
  // Of steps whose routing is measured, else undefined and empty.
  Tensor routing;  // f64 [routed layers of the model, 3]: Stream::routing_sums
  // f32 [causes, E, d] of each routed layer of the model, undefined for those of other stages: gradients of the
  // router's weight, by the loss, by balance and by z.
  std::vector<Tensor> router_gradients;
  RoutingTap* tap = nullptr;             // or null
  TeacherLogits* teacher = nullptr;      // of the head's objective, or null
  LatentCore* latent = nullptr;          // where tokens are fed one after the other, or null
  ExpertDecisions* decisions = nullptr;  // of the block that is run, where it is computed again, or null
  // For what travels while the main stream computes; null: it travels on the main one.
  Stream* beside = nullptr;
};

inline void push(Saved& saved, Tensor t) {
  saved.push(std::move(t));
}
inline Tensor pop(Saved& saved) {
  return saved.pop();
}

}  // namespace orthant
