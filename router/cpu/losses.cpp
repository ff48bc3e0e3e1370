// gate_losses: one partial sum a group, added in the groups' order.
#include "router/losses.h"

#include <vector>

#include "core/cpu/cpu_stream.h"
#include "core/cpu/parallel.h"
#include "router/checks.h"

namespace orthant {

void CpuStream::gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& probability,
                            const Tensor& chosen, const Tensor& logits, const Tensor& valid, const GateConfig& config) {
  const std::int64_t tokens = logits.dim(0), experts = config.experts;
  const std::int64_t groups = check_gate_config("gate_losses", config, tokens);
  check_arguments("gate_losses", {{"balance_loss", balance_loss, DType::f64, {1}},
                                  {"z_loss", z_loss, DType::f64, {1}},
                                  {"probability", probability, DType::f32, {tokens, experts}},
                                  {"chosen", chosen, DType::i32, {groups, experts}},
                                  {"logits", logits, DType::f32, {tokens, experts}},
                                  {"valid", valid, DType::u8, {tokens}}});
  struct Partial {
    double balance = 0, z = 0;
  };
  std::vector<Partial> partial(static_cast<std::size_t>(groups));
  const std::uint8_t* const is_valid = valid.as<std::uint8_t>();
  parallel_for(threads_, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int32_t* const count = chosen.as<std::int32_t>() + g * experts;
      Partial sum;
      for (std::int64_t t = g * config.group_tokens; t < (g + 1) * config.group_tokens; ++t) {
        if (is_valid[t] == 0) {
          continue;
        }
        const float* const p = probability.as<float>() + t * experts;
        for (std::int64_t e = 0; e < experts; ++e) {
          sum.balance += static_cast<double>(p[e]) * count[e];
        }
        const double lse = logsumexp_of(logits.as<float>() + t * experts, p, experts);
        sum.z += lse * lse;
      }
      sum.balance *= balance_factor(count, experts);
      partial[static_cast<std::size_t>(g)] = sum;
    }
  });
  for (const Partial& sum : partial) {
    *balance_loss.as<double>() += sum.balance;
    *z_loss.as<double>() += sum.z;
  }
}

}  // namespace orthant
