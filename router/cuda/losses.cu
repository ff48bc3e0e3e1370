// gate_losses: partial sums of groups and of runs of tokens, then their sum by the last block, all in a fixed order.
#include "router/rules/losses.h"

#include <algorithm>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/last_block.h"
#include "core/device/router_checks.h"

namespace orthant::cuda {
namespace {

constexpr int run_tokens = 4096;

struct LossesTask {
  double *balance_loss, *z_loss;  // [1]
  double *balance, *z;            // [groups]: valid_g * L_g; [runs]: the sum of lse^2 over a run of tokens
  const std::int32_t* chosen;     // [groups, E]
  const double* share;            // [groups, E]
  const float* lse;               // [T]
  unsigned* counter;
  std::int64_t groups, runs, tokens, experts;
};

__global__ void sum_losses(LossesTask task) {
  const std::int64_t experts = task.experts;
  for (std::int64_t i = blockIdx.x; i < task.groups; i += gridDim.x) {
    double sum = 0;
    std::int64_t counted = 0;
    for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
      sum += task.chosen[i * experts + e] * task.share[i * experts + e];
      counted += task.chosen[i * experts + e];
    }
    sum = block_sum(sum);
    counted = block_sum(counted);
    if (threadIdx.x == 0) {
      task.balance[i] = counted == 0 ? 0.0 : static_cast<double>(experts) / static_cast<double>(counted) * sum;
    }
  }
  for (std::int64_t i = blockIdx.x; i < task.runs; i += gridDim.x) {
    const std::int64_t end = min((i + 1) * run_tokens, task.tokens);
    double sum = 0;
    for (std::int64_t t = i * run_tokens + threadIdx.x; t < end; t += blockDim.x) {
      sum += static_cast<double>(task.lse[t]) * static_cast<double>(task.lse[t]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
      task.z[i] = sum;
    }
  }
  if (!last_block(task.counter, gridDim.x)) {
    return;
  }
  double of_balance = 0, of_z = 0;
  for (std::int64_t i = threadIdx.x; i < task.groups; i += blockDim.x) {
    of_balance += task.balance[i];
  }
  for (std::int64_t i = threadIdx.x; i < task.runs; i += blockDim.x) {
    of_z += task.z[i];
  }
  of_balance = block_sum(of_balance);
  of_z = block_sum(of_z);
  if (threadIdx.x == 0) {
    *task.balance_loss += of_balance;
    *task.z_loss += of_z;
  }
}

}  // namespace

void CudaStream::gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen,
                             const Tensor& share, const Tensor& lse, const GateConfig& config) {
  const std::int64_t tokens = lse.dim(0), experts = config.experts;
  const std::int64_t groups = check_gate_losses(balance_loss, z_loss, chosen, share, lse, config);
  const std::int64_t runs = (tokens + run_tokens - 1) / run_tokens;
  double* const balance = static_cast<double*>(scratch(0, static_cast<std::size_t>(groups + runs) * sizeof(double)));
  const LossesTask task{.balance_loss = balance_loss.as<double>(),
                        .z_loss = z_loss.as<double>(),
                        .balance = balance,
                        .z = balance + groups,
                        .chosen = chosen.as<std::int32_t>(),
                        .share = share.as<double>(),
                        .lse = lse.as<float>(),
                        .counter = counters(1),
                        .groups = groups,
                        .runs = runs,
                        .tokens = tokens,
                        .experts = experts};
  launch(sum_losses, Grid{blocks_for(std::max(groups, runs), 1), 128}, stream_, task);
}

}  // namespace orthant::cuda
