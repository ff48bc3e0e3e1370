// routing_sums: a warp for each token, partial sums of blocks, then their sum by the last block, all in a fixed order.
#include <algorithm>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/last_block.h"
#include "core/device/router_checks.h"
#include "router/cuda/token_row.h"

namespace orthant::cuda {
namespace {

constexpr int summing_warps = 8;
constexpr std::int64_t most_summing_blocks = 1024;

// The rest of the operation's arguments; shapes as there.
struct SummedRows {
  const std::int32_t* expert;
  const float* lse;
  const float* logits;
  const std::uint8_t* valid;
  std::int64_t tokens;
  int experts, top_k;
  bool sigmoids, experts_choose, second_by_chance;
};

// In nats. The same in each lane; all lanes of the warp call.
__device__ double entropy_of_scores(const float* x, float lse, const SummedRows& rows) {
  double sum = 0, weighted = 0;
  for (int e = lane(); e < rows.experts; e += warp_threads) {
    const double score = rows.sigmoids ? sigmoid(x[e]) : expf(x[e] - lse);
    sum += score;
    if (score > 0) {
      weighted += rows.sigmoids ? score * log(score) : score * (lse - x[e]);
    }
  }
  sum = warp_sum(sum);
  weighted = warp_sum(weighted);
  if (!rows.sigmoids) {
    return weighted;
  }
  return sum > 0 ? log(sum) - weighted / sum : 0;
}

struct TokenMargin {
  double difference;
  bool exists;
};

// Likewise.
__device__ TokenMargin margin_of(const float* x, const std::int32_t* selected, const SummedRows& rows) {
  if (rows.second_by_chance) {
    const Best first = next_best(x, rows.experts, Best{}), second = next_best(x, rows.experts, first);
    if (rows.experts < 3) {
      return {0, false};
    }
    const Best third = next_best(x, rows.experts, second);
    return {static_cast<double>(x[second.expert]) - x[third.expert], true};
  }
  float least = INFINITY, other = -INFINITY;
  int count = 0;
  for (int e = lane(); e < rows.experts; e += warp_threads) {
    bool chosen = false;
    for (int k = 0; k < rows.top_k; ++k) {
      chosen = chosen || selected[k] == e;
    }
    if (chosen) {
      ++count;
      least = fminf(least, x[e]);
    } else {
      other = fmaxf(other, x[e]);
    }
  }
  count = warp_sum(count);
  least = -warp_max(-least);
  other = warp_max(other);
  return {static_cast<double>(least) - other, count > 0 && count < rows.experts};
}

// sums [3] += the sums; parts [blocks, 3].
__global__ void __launch_bounds__(summing_warps* warp_threads)
    add_routing_sums(double* sums, double* parts, unsigned* counter, SummedRows rows) {
  double entropy = 0, margin = 0, counted = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * summing_warps;
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * summing_warps + warp(); t < rows.tokens; t += stride) {
    if (rows.valid[t] == 0) {
      continue;
    }
    const float* const x = rows.logits + t * rows.experts;
    entropy += entropy_of_scores(x, rows.lse[t], rows);
    if (!rows.experts_choose) {
      const TokenMargin of_token = margin_of(x, rows.expert + t * rows.top_k, rows);
      margin += of_token.exists ? of_token.difference : 0;
      counted += of_token.exists ? 1 : 0;
    }
  }
  // Each lane of a warp has the warp's sums.
  entropy = block_sum(lane() == 0 ? entropy : 0.0);
  margin = block_sum(lane() == 0 ? margin : 0.0);
  counted = block_sum(lane() == 0 ? counted : 0.0);
  if (threadIdx.x == 0) {
    parts[blockIdx.x * 3] = entropy;
    parts[blockIdx.x * 3 + 1] = margin;
    parts[blockIdx.x * 3 + 2] = counted;
  }
  if (!last_block(counter, gridDim.x)) {
    return;
  }
  for (int i = 0; i < 3; ++i) {
    double sum = 0;
    for (std::int64_t block = threadIdx.x; block < gridDim.x; block += blockDim.x) {
      sum += parts[block * 3 + i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
      sums[i] += sum;
    }
  }
}

}  // namespace

void CudaStream::routing_sums(const Tensor& sums, const Tensor& expert, const Tensor& lse, const Tensor& logits,
                              const Tensor& valid, const GateConfig& config) {
  check_routing_sums(sums, expert, lse, logits, valid, config);
  const std::int64_t tokens = logits.dim(0);
  const std::int64_t blocks =
      std::clamp<std::int64_t>((tokens + summing_warps - 1) / summing_warps, 1, most_summing_blocks);
  double* const parts = static_cast<double*>(scratch(0, static_cast<std::size_t>(blocks) * 3 * sizeof(double)));
  const SummedRows rows{.expert = expert.as<std::int32_t>(),
                        .lse = lse.as<float>(),
                        .logits = logits.as<float>(),
                        .valid = valid.as<std::uint8_t>(),
                        .tokens = tokens,
                        .experts = static_cast<int>(config.experts),
                        .top_k = static_cast<int>(config.top_k),
                        .sigmoids = config.score == ScoreKind::sigmoid,
                        .experts_choose = config.experts_choose,
                        .second_by_chance = config.second_by_chance};
  launch(add_routing_sums, Grid{static_cast<unsigned>(blocks), summing_warps * warp_threads}, stream_,
         sums.as<double>(), parts, counters(1), rows);
}

}  // namespace orthant::cuda
