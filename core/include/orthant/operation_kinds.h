// What operations of a Stream (ops.h) are told to do by name. Settings use the same enums.
#pragma once

#include <orthant/abi/operations.h>

namespace orthant {

enum class NormKind { layernorm, rmsnorm };

// tanh is an operation's alone: no FFN has it.
enum class Activation { relu, gelu, swiglu, clamped_swiglu, geglu, tanh };
// Whether it is a product of two halves, a gate and what it gates.
constexpr bool is_gated(Activation kind) {
  return kind == Activation::swiglu || kind == Activation::clamped_swiglu || kind == Activation::geglu;
}

// The score of an expert for a token; what ranks a group of experts; which choices get the seats of a full expert.
enum class ScoreKind { softmax, sigmoid };
enum class GroupScore { top2_sum, max };
enum class DropPolicy { position, probability };

}  // namespace orthant
