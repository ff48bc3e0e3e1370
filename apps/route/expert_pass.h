// The experts of one rank in one micro-batch of a layer, there and back, by the operations that training runs.
#pragma once

#include <orthant/device.h>
#include <orthant/ops.h>
#include <orthant/settings.h>

#include <compare>
#include <cstdint>
#include <vector>

namespace orthant {

// What a rank's experts work on.
struct ExpertLoad {
  std::vector<std::int64_t> rows;      // of each local expert
  std::int64_t tokens = 0, top_k = 1;  // whose choices they are; 0 tokens: rows came from other ranks
  bool recomputed = false;             // the forward pass comes twice
  auto operator<=>(const ExpertLoad&) const = default;
};

// As Experts does it (experts/experts.h), with every number 0.01. Tokens of the rank: forward_here and backward_here,
// fused or, where experts have biases, operation by operation. Rows from other ranks: what comes between their arrival
// and their leaving. Thread safety: none.
class ExpertPass {
 public:
  // REQUIRES: some experts. Errors: Error for more rows than the tokens have choices.
  ExpertPass(const Settings& settings, const ExpertLoad& load, Device& device, Stream& stream);

  void forward();
  void backward();

 private:
  Tensor filled(DType type, const Shape& shape);

  Device& device_;
  Stream& s_;
  const Activation kind_;
  const bool biases_, travelled_;  // travelled: rows come from other ranks
  const DType dtype_;
  Dispatch to_;
  Tensor x_, y_, h_, w_in_, w_out_, dw_in_, dw_out_, dx_, dweight_;
  Tensor rows_, a_, dh_, da_;                              // operation by operation
  Tensor b_in_, b_out_, db_in_, db_out_, ones_, of_rows_;  // of experts with biases
};

}  // namespace orthant
