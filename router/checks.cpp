#include "router/checks.h"

#include "router/gate.h"

namespace orthant {

void check_arguments(std::string_view operation, std::initializer_list<Argument> arguments) {
  for (const Argument& a : arguments) {
    require(a.tensor.defined() && a.tensor.dtype() == a.dtype && a.tensor.shape() == a.shape,
            "{}: `{}` must be {} {}, got {} {}", operation, a.name, name_of(a.dtype), a.shape.to_string(),
            a.tensor.defined() ? name_of(a.tensor.dtype()) : "undefined", a.tensor.shape().to_string());
  }
}

void check_float(std::string_view operation, const char* name, const Tensor& tensor) {
  require(tensor.defined() && tensor.rank() == 2 && (tensor.dtype() == DType::f32 || tensor.dtype() == DType::bf16),
          "{}: `{}` must be a matrix of f32 or bf16, got {} {}", operation, name,
          tensor.defined() ? name_of(tensor.dtype()) : "undefined", tensor.shape().to_string());
}

std::int64_t check_gate_config(std::string_view operation, const GateConfig& config, std::int64_t tokens) {
  const bool experts_choose = config.router == RouterKind::expert_choice;
  require(config.experts > 0 && config.top_k > 0 && config.top_k <= config.experts &&
              (config.top_k <= max_top_k || experts_choose),
          "{}: a token cannot choose {} of {} experts (at most {})", operation, config.top_k, config.experts,
          max_top_k);
  require(!experts_choose || config.top_k == config.experts,
          "{}: where experts choose, a token has a choice for each of the {} experts, top_k is {}", operation,
          config.experts, config.top_k);
  require(config.score == ScoreKind::softmax || config.router == RouterKind::topk,
          "{}: only the topk router takes its scores by sigmoid", operation);
  require(config.router != RouterKind::switch_ || config.top_k == 1,
          "{}: the switch router chooses 1 expert, top_k is {}", operation, config.top_k);
  require(config.router != RouterKind::gshard || config.top_k == 2,
          "{}: the gshard router chooses 2 experts, top_k is {}", operation, config.top_k);
  require(config.group_tokens > 0 && tokens % config.group_tokens == 0, "{}: {} tokens are not whole groups of {}",
          operation, tokens, config.group_tokens);
  return tokens / config.group_tokens;
}

void check_experts_choose(std::string_view operation, const GateConfig& config) {
  require(config.router != RouterKind::expert_choice || config.capacity_factor > 0,
          "{}: experts that choose need a capacity_factor above 0, it is {}", operation, config.capacity_factor);
}

}  // namespace orthant
