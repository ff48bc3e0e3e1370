// gate_losses: sums over groups and over tokens, in their order.
#include "router/rules/losses.h"

#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/router_checks.h"

namespace orthant {

void CpuStream::gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen, const Tensor& share,
                            const Tensor& lse, const GateConfig& config) {
  const std::int64_t tokens = lse.dim(0), experts = config.experts;
  const std::int64_t groups = check_gate_losses(balance_loss, z_loss, chosen, share, lse, config);
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int32_t* const counts = chosen.as<std::int32_t>() + g * experts;
    const double* const shares = share.as<double>() + g * experts;
    double sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      sum += counts[e] * shares[e];
    }
    *balance_loss.as<double>() += balance_factor(counts, experts) * sum;
  }
  const float* const of_token = lse.as<float>();
  *z_loss.as<double>() += block_sum(threads_, tokens, [&](std::int64_t begin, std::int64_t end) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t t = begin; t < end; ++t) {
      sum += static_cast<double>(of_token[t]) * static_cast<double>(of_token[t]);
    }
    return sum;
  });
}

}  // namespace orthant
