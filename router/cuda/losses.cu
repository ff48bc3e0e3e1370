// gate_losses: partial sums of groups and of runs of tokens, then their sum, all in a fixed order.
#include "router/rules/losses.h"

#include <algorithm>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_math.h"
#include "core/device/cuda/launch.h"
#include "core/device/router_checks.h"

namespace orthant::cuda {
namespace {

constexpr int run_tokens = 4096;

// balance [groups]: valid_g * L_g. z [runs]: the sum of lse^2 over a run of tokens.
__global__ void partial_losses(double* balance, double* z, const std::int32_t* chosen, const double* share,
                               const float* lse, std::int64_t groups, std::int64_t runs, std::int64_t tokens,
                               std::int64_t experts) {
  for (std::int64_t i = blockIdx.x; i < groups; i += gridDim.x) {
    double sum = 0;
    std::int64_t counted = 0;
    for (std::int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
      sum += chosen[i * experts + e] * share[i * experts + e];
      counted += chosen[i * experts + e];
    }
    sum = block_sum(sum);
    counted = block_sum(counted);
    if (threadIdx.x == 0) {
      balance[i] = counted == 0 ? 0.0 : static_cast<double>(experts) / static_cast<double>(counted) * sum;
    }
  }
  for (std::int64_t i = blockIdx.x; i < runs; i += gridDim.x) {
    const std::int64_t end = min((i + 1) * run_tokens, tokens);
    double sum = 0;
    for (std::int64_t t = i * run_tokens + threadIdx.x; t < end; t += blockDim.x) {
      sum += static_cast<double>(lse[t]) * static_cast<double>(lse[t]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
      z[i] = sum;
    }
  }
}

// One block.
__global__ void add_losses(double* balance_loss, double* z_loss, const double* balance, const double* z,
                           std::int64_t groups, std::int64_t runs) {
  double of_balance = 0, of_z = 0;
  for (std::int64_t i = threadIdx.x; i < groups; i += blockDim.x) {
    of_balance += balance[i];
  }
  for (std::int64_t i = threadIdx.x; i < runs; i += blockDim.x) {
    of_z += z[i];
  }
  of_balance = block_sum(of_balance);
  of_z = block_sum(of_z);
  if (threadIdx.x == 0) {
    *balance_loss += of_balance;
    *z_loss += of_z;
  }
}

}  // namespace

void CudaStream::gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen,
                             const Tensor& share, const Tensor& lse, const GateConfig& config) {
  const std::int64_t tokens = lse.dim(0), experts = config.experts;
  const std::int64_t groups = check_gate_losses(balance_loss, z_loss, chosen, share, lse, config);
  const std::int64_t runs = (tokens + run_tokens - 1) / run_tokens;
  double* const balance = static_cast<double*>(scratch(0, static_cast<std::size_t>(groups + runs) * sizeof(double)));
  double* const z = balance + groups;
  launch(partial_losses, Grid{blocks_for(std::max(groups, runs), 1), 128}, stream_, balance, z,
         chosen.as<std::int32_t>(), share.as<double>(), lse.as<float>(), groups, runs, tokens, experts);
  launch(add_losses, Grid{1, 256}, stream_, balance_loss.as<double>(), z_loss.as<double>(), balance, z, groups, runs);
}

}  // namespace orthant::cuda
