#include "core/device/router_checks.h"

#include <initializer_list>

#include "core/base/check.h"
#include "router/rules/gate.h"

namespace orthant {
namespace {

struct Argument {
  const char* name;
  const Tensor& tensor;
  DType dtype;
  Shape shape;
};

// Every argument has its dtype and shape.
void check_arguments(const char* operation, std::initializer_list<Argument> arguments) {
  for (const Argument& a : arguments) {
    require_tensor(operation, a.name, a.tensor, a.dtype, a.shape);
  }
}

// A matrix of f32 or bf16.
void check_float(const char* operation, const char* name, const Tensor& tensor) {
  require_float(operation, name, tensor);
  require_rank(operation, name, tensor, 2);
}

// The configuration makes sense (choices fit the experts and the router) and `tokens` are whole groups. Returns the
// number of groups.
std::int64_t check_config(const char* operation, const GateConfig& config, std::int64_t tokens) {
  const bool experts_choose = config.experts_choose;
  require(config.experts > 0 && config.top_k > 0 && config.top_k <= config.experts &&
              (config.top_k <= max_top_k || experts_choose),
          "{}: a token cannot choose {} of {} experts (at most {})", operation, config.top_k, config.experts,
          max_top_k);
  require(!experts_choose || config.top_k == config.experts,
          "{}: where experts choose, a token has a choice for each of the {} experts, top_k is {}", operation,
          config.experts, config.top_k);
  require(config.score == ScoreKind::softmax || !config.second_by_chance,
          "{}: scores by sigmoid are for choices without chance", operation);
  require(!config.second_by_chance || config.top_k == 2, "{}: of two choices the second is kept by chance, top_k is {}",
          operation, config.top_k);
  require(config.counted_choices >= 0 && config.counted_choices <= config.top_k,
          "{}: {} of a token's {} choices cannot be counted", operation, config.counted_choices, config.top_k);
  require(config.group_tokens > 0 && tokens % config.group_tokens == 0, "{}: {} tokens are not whole groups of {}",
          operation, tokens, config.group_tokens);
  return tokens / config.group_tokens;
}

void check_source(const char* operation, const Tensor& rows, const Tensor& source) {
  require(source.defined() && source.dtype() == DType::i32 && source.elements() >= rows.dim(0),
          "{}: `source` must be i32 with at least the {} packed rows, got {}", operation, rows.dim(0), source.shape());
}

void check_row(const char* operation, const Tensor& row) {
  require(row.defined() && row.rank() == 2 && row.dim(1) > 0, "{}: `row` must be [T, K], got {}", operation,
          row.shape());
}

}  // namespace

std::int64_t check_gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                        const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                        const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_config("gate", config, tokens);
  require(!config.experts_choose || config.capacity_factor > 0,
          "gate: experts that choose need a capacity_factor above 0, it is {}", config.capacity_factor);
  check_arguments("gate", {{"logits", logits, DType::f32, {tokens, experts}},
                           {"expert", expert, DType::i32, {tokens, k_count}},
                           {"weight", weight, DType::f32, {tokens, k_count}},
                           {"lse", lse, DType::f32, {tokens}},
                           {"chosen", chosen, DType::i32, {groups, experts}},
                           {"share", share, DType::f64, {groups, experts}},
                           {"valid", valid, DType::u8, {tokens}},
                           {"token", token, DType::i64, {tokens}}});
  return groups;
}

std::int64_t check_gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert, const Tensor& lse,
                                 const Tensor& chosen, const Tensor& logits, const Tensor& valid,
                                 const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_config("gate_backward", config, tokens);
  check_arguments("gate_backward", {{"logits", logits, DType::f32, {tokens, experts}},
                                    {"dlogits", dlogits, DType::f32, {tokens, experts}},
                                    {"dweight", dweight, DType::f32, {tokens, k_count}},
                                    {"expert", expert, DType::i32, {tokens, k_count}},
                                    {"lse", lse, DType::f32, {tokens}},
                                    {"chosen", chosen, DType::i32, {groups, experts}},
                                    {"valid", valid, DType::u8, {tokens}}});
  return groups;
}

std::int64_t check_gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen,
                               const Tensor& share, const Tensor& lse, const GateConfig& config) {
  const std::int64_t tokens = lse.dim(0), experts = config.experts;
  const std::int64_t groups = check_config("gate_losses", config, tokens);
  check_arguments("gate_losses", {{"balance_loss", balance_loss, DType::f64, {1}},
                                  {"z_loss", z_loss, DType::f64, {1}},
                                  {"chosen", chosen, DType::i32, {groups, experts}},
                                  {"share", share, DType::f64, {groups, experts}},
                                  {"lse", lse, DType::f32, {tokens}}});
  return groups;
}

void check_routing_sums(const Tensor& sums, const Tensor& expert, const Tensor& lse, const Tensor& logits,
                        const Tensor& valid, const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0);
  check_config("routing_sums", config, tokens);
  check_arguments("routing_sums", {{"sums", sums, DType::f64, {3}},
                                   {"expert", expert, DType::i32, {tokens, config.top_k}},
                                   {"lse", lse, DType::f32, {tokens}},
                                   {"logits", logits, DType::f32, {tokens, config.experts}},
                                   {"valid", valid, DType::u8, {tokens}}});
}

void check_choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias, const Tensor& valid,
                          const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts;
  check_config("choose_experts", config, tokens);
  require(!config.experts_choose && !config.second_by_chance, "choose_experts: tokens choose, and not by chance");
  require(config.expert_groups > 0 && config.expert_groups <= max_expert_groups && experts % config.expert_groups == 0,
          "choose_experts: {} experts are not {} equal groups (at most {})", experts, config.expert_groups,
          max_expert_groups);
  require(config.groups_per_token > 0 && config.groups_per_token <= config.expert_groups &&
              config.groups_per_token * (experts / config.expert_groups) >= config.top_k,
          "choose_experts: {} experts cannot be chosen from {} of {} groups of {}", config.top_k,
          config.groups_per_token, config.expert_groups, experts / config.expert_groups);
  check_arguments("choose_experts", {{"logits", logits, DType::f32, {tokens, experts}},
                                     {"expert", expert, DType::i32, {tokens, config.top_k}},
                                     {"valid", valid, DType::u8, {tokens}}});
  if (bias.defined()) {
    check_arguments("choose_experts", {{"bias", bias, DType::f32, {experts}}});
  }
}

std::int64_t check_gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                                const Tensor& expert, const Tensor& logits, const Tensor& valid,
                                const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts, k_count = config.top_k;
  const std::int64_t groups = check_config("gate_choices", config, tokens);
  require(!config.experts_choose && !config.second_by_chance, "gate_choices: tokens choose, and not by chance");
  check_arguments("gate_choices", {{"logits", logits, DType::f32, {tokens, experts}},
                                   {"expert", expert, DType::i32, {tokens, k_count}},
                                   {"weight", weight, DType::f32, {tokens, k_count}},
                                   {"lse", lse, DType::f32, {tokens}},
                                   {"chosen", chosen, DType::i32, {groups, experts}},
                                   {"share", share, DType::f64, {groups, experts}},
                                   {"valid", valid, DType::u8, {tokens}}});
  return groups;
}

void check_balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor) {
  require(bias.defined() && bias.rank() == 1 && choices.defined() && choices.rank() == 2,
          "balance_bias: `bias` must be [E], `choices` [R, E], got {} and {}", bias.shape(), choices.shape());
  check_arguments("balance_bias", {{"bias", bias, DType::f32, bias.shape()},
                                   {"choices", choices, DType::i64, {choices.dim(0), bias.dim(0)}},
                                   {"factor", factor, DType::f32, {1}}});
}

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
  const std::int64_t tokens = expert.dim(0), experts = config.computing(), k_count = config.top_k;
  check_config("dispatch_plan", config, tokens);
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

void check_part_choices(const Tensor& real, const Tensor& other, const Tensor& count, const Tensor& expert,
                        const GateConfig& config) {
  require(expert.defined() && expert.rank() == 2, "part_choices: `expert` must be [T, K], got {}", expert.shape());
  require(config.zero_experts > 0 && config.zero_experts < config.experts,
          "part_choices: {} of {} experts compute nothing", config.zero_experts, config.experts);
  check_arguments("part_choices", {{"expert", expert, DType::i32, {expert.dim(0), config.top_k}},
                                   {"real", real, DType::i32, expert.shape()},
                                   {"other", other, DType::f32, expert.shape()},
                                   {"count", count, DType::i32, {config.zero_experts}}});
}

void check_keep_seated(const Tensor& expert, const Tensor& row) {
  require(expert.defined() && expert.rank() == 2, "keep_seated: `expert` must be [T, K], got {}", expert.shape());
  check_arguments("keep_seated",
                  {{"expert", expert, DType::i32, expert.shape()}, {"row", row, DType::i32, expert.shape()}});
}

}  // namespace orthant
