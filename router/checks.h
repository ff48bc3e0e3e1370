// Argument checks of the router's operations, the same for every device.
//
// Each throws Error naming the operation, the argument and both shapes, and returns the sizes found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <orthant/ops.h>

namespace orthant {

struct Argument {
  const char* name;
  const Tensor& tensor;
  DType dtype;
  Shape shape;
};

// Every argument has its dtype and shape.
void check_arguments(std::string_view operation, std::initializer_list<Argument> arguments);

// f: f32 or bf16.
void check_float(std::string_view operation, const char* name, const Tensor& tensor);

// The configuration makes sense (choices fit the experts and the router) and `tokens` are whole groups.
// Returns the number of groups.
std::int64_t check_gate_config(std::string_view operation, const GateConfig& config, std::int64_t tokens);

// The arguments of the operations of these names.
void check_pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source);
void check_pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row);
void check_combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight);
void check_combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                            const Tensor& row, const Tensor& source, const Tensor& weight);
// Returns the room: the number of packed rows.
std::int64_t check_dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                                 const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                                 const GateConfig& config);
void check_keep_seated(const Tensor& expert, const Tensor& row);

// Where the experts choose, it is said how many tokens they take.
void check_experts_choose(std::string_view operation, const GateConfig& config);

}  // namespace orthant
