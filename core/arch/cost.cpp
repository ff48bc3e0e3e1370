#include "core/arch/cost.h"

#include <orthant/gate.h>

#include "core/arch/parameter_table.h"

namespace orthant {

double ffn_flops(const Settings& s, std::int64_t width) {
  const double matrices = is_gated(s.model.activation) ? 3 : 2;
  return 2 * matrices * static_cast<double>(s.model.d_model) * static_cast<double>(width);
}

namespace {

// Norms, residual sums and lookups are bound by memory: about this many operations' time for each element they touch.
constexpr double element = 20;

double routed(const Settings& s) {
  const double router = 2 * static_cast<double>(s.model.d_model) * static_cast<double>(s.moe.columns());
  return router + gate_of(s).experts_of_token(s.moe) * ffn_flops(s, d_expert_of(s)) + ffn_flops(s, d_shared_of(s));
}

double product(std::int64_t inputs, std::int64_t outputs) {
  return 2 * static_cast<double>(inputs) * static_cast<double>(outputs);
}

double block(const Settings& s, int number) {
  return attention_part(s).flops(s, number) + (block_has_experts(s, number) ? routed(s) : ffn_part(s).flops(s, number));
}

double head(const Settings& s) {
  return product(s.model.d_model, s.model.vocab_size);
}

// A depth of multi-token prediction: two halves joined, a block, and a head.
double depth(const Settings& s, int number) {
  return product(2 * s.model.d_model, s.model.d_model) + block(s, static_cast<int>(s.model.layers) + number) + head(s);
}

}  // namespace

std::vector<double> layer_costs(const Settings& s) {
  const double d = static_cast<double>(s.model.d_model);
  std::vector<double> cost = {element * d};
  for (int number = 0; number < s.model.layers; ++number) {
    cost.push_back(4 * element * d + block(s, number));
  }
  cost.push_back(element * d + head(s));
  for (int number = 0; number < s.model.mtp_depth; ++number) {
    cost.push_back(8 * element * d + depth(s, number));
  }
  return cost;
}

double training_flops(const Settings& s) {
  double forward = head(s);
  for (int number = 0; number < s.model.layers; ++number) {
    forward += block(s, number);
  }
  for (int number = 0; number < s.model.mtp_depth; ++number) {
    forward += depth(s, number);
  }
  return 3 * forward;
}

}  // namespace orthant
