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

namespace {

void check_source(std::string_view operation, const Tensor& rows, const Tensor& source) {
  require(source.defined() && source.dtype() == DType::i32 && source.elements() >= rows.dim(0),
          "{}: `source` must be i32 with at least the {} packed rows, got {}", operation, rows.dim(0),
          source.shape().to_string());
}

void check_row(std::string_view operation, const Tensor& row) {
  require(row.defined() && row.rank() == 2 && row.dim(1) > 0, "{}: `row` must be [T, K], got {}", operation,
          row.shape().to_string());
}

}  // namespace

void check_pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) {
  check_float("pack", "x", x);
  check_float("pack", "rows", rows);
  check_row("pack", row);
  check_arguments(
      "pack", {{"rows", rows, x.dtype(), {rows.dim(0), x.dim(1)}}, {"row", row, DType::i32, {x.dim(0), row.dim(1)}}});
  check_source("pack", rows, source);
}

void check_pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row) {
  check_float("pack_backward", "dx", dx);
  check_float("pack_backward", "drows", drows);
  check_row("pack_backward", row);
  check_arguments("pack_backward", {{"row", row, DType::i32, {dx.dim(0), row.dim(1)}},
                                    {"drows", drows, dx.dtype(), {drows.dim(0), dx.dim(1)}}});
}

void check_combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight) {
  check_float("combine", "y", y);
  check_float("combine", "rows", rows);
  check_row("combine", row);
  check_arguments("combine", {{"row", row, DType::i32, {y.dim(0), row.dim(1)}},
                              {"weight", weight, DType::f32, {y.dim(0), row.dim(1)}},
                              {"rows", rows, y.dtype(), {rows.dim(0), y.dim(1)}}});
}

void check_combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                            const Tensor& row, const Tensor& source, const Tensor& weight) {
  check_float("combine_backward", "dy", dy);
  check_float("combine_backward", "rows", rows);
  check_row("combine_backward", row);
  const Shape choices = {dy.dim(0), row.dim(1)}, packed = {rows.dim(0), dy.dim(1)};
  check_arguments("combine_backward", {{"row", row, DType::i32, choices},
                                       {"weight", weight, DType::f32, choices},
                                       {"dweight", dweight, DType::f32, choices},
                                       {"rows", rows, dy.dtype(), packed},
                                       {"drows", drows, dy.dtype(), packed}});
  check_source("combine_backward", rows, source);
}

std::int64_t check_dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                                 const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                                 const GateConfig& config) {
  const std::int64_t tokens = expert.dim(0), experts = config.experts, k_count = config.top_k;
  check_gate_config("dispatch_plan", config, tokens);
  const std::int64_t room = config.rows_per_expert > 0 ? experts * config.rows_per_expert : tokens * k_count;
  require(tokens * k_count <= 2147483647 && room <= 2147483647,
          "dispatch_plan: {} choices and {} packed rows are more than i32 can count", tokens * k_count, room);
  check_arguments("dispatch_plan", {{"expert", expert, DType::i32, {tokens, k_count}},
                                    {"row", row, DType::i32, {tokens, k_count}},
                                    {"source", source, DType::i32, {room, 1}},
                                    {"count", count, DType::i32, {experts}},
                                    {"dropped", dropped, DType::i32, {experts}},
                                    {"offset", offset, DType::i32, {experts + 1}},
                                    {"weight", weight, DType::f32, {tokens, k_count}},
                                    {"valid", valid, DType::u8, {tokens}}});
  return room;
}

void check_keep_seated(const Tensor& expert, const Tensor& row) {
  require(expert.defined() && expert.rank() == 2, "keep_seated: `expert` must be [T, K], got {}",
          expert.shape().to_string());
  check_arguments("keep_seated",
                  {{"expert", expert, DType::i32, expert.shape()}, {"row", row, DType::i32, expert.shape()}});
}

}  // namespace orthant
