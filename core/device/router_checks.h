// Argument checks of the router's operations, the same for every device. Each checks the arguments of the operation of
// its name and throws Error naming the operation, the argument, what was expected and what was found.
#pragma once

#include <cstdint>

#include <orthant/ops.h>

namespace orthant {

// Those of the gate return the number of groups.
std::int64_t check_gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                        const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                        const GateConfig& config);
std::int64_t check_gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert, const Tensor& lse,
                                 const Tensor& chosen, const Tensor& logits, const Tensor& valid,
                                 const GateConfig& config);
std::int64_t check_gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen,
                               const Tensor& share, const Tensor& lse, const GateConfig& config);
void check_routing_sums(const Tensor& sums, const Tensor& expert, const Tensor& lse, const Tensor& logits,
                        const Tensor& valid, const GateConfig& config);

void check_choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias, const Tensor& valid,
                          const GateConfig& config);
std::int64_t check_gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                                const Tensor& expert, const Tensor& logits, const Tensor& valid,
                                const GateConfig& config);
void check_balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor);

// Returns the room: the number of packed rows.
std::int64_t check_dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                                 const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                                 const GateConfig& config);
void check_part_choices(const Tensor& real, const Tensor& other, const Tensor& count, const Tensor& expert,
                        const GateConfig& config);
void check_keep_seated(const Tensor& expert, const Tensor& row);

void check_pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source);
void check_pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row);
void check_combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight);
void check_combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                            const Tensor& row, const Tensor& source, const Tensor& weight);

}  // namespace orthant
