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

// Where the experts choose, it is said how many tokens they take.
void check_experts_choose(std::string_view operation, const GateConfig& config);

}  // namespace orthant
