// What the operations of a block cost on one rank: FLOPs over the rate of products plus bytes over the rate of memory,
// each at the part that the machine has been seen to reach.
//
// The sum, and not the larger of the two: products of a few rows are slower than either bound alone, and the sum says
// so without a factor for every shape. Bytes of element-wise work follow from the reads and writes of fused kernels, as
// Korthikanti et al. count them (arXiv 2205.05198, section 4).
//
// Thread safety: pure functions.
#pragma once

#include "apps/cost/collectives.h"
#include "apps/cost/machine.h"
#include "apps/cost/model_shape.h"

namespace orthant::cost {

// Seconds of one pass of one micro-batch on one rank, by what they are spent on.
struct PassSeconds {
  double products = 0;
  double attention = 0;
  double memory = 0;  // norms, sums, activations, permutation
  double tensor = 0;  // exchanges of the tensor and context groups
  double expert = 0;  // exchanges of the expert groups
  double launch = 0;  // what the host's launches take beyond the device's work

  double total() const { return products + attention + memory + tensor + expert + launch; }
  PassSeconds& operator+=(const PassSeconds& other);
  PassSeconds operator*(double times) const;
};

struct BlockSeconds {
  PassSeconds forward;
  PassSeconds backward;  // with what is computed again
  double weights = 0;    // s of backward that only the weights' gradients need
};

// m x n = (m x k)(k x n). s.
double product_seconds(const Machine& machine, Precision precision, double m, double n, double k);

// One block; `routed`: with experts instead of a dense FFN. busiest: Routing's imbalance.
BlockSeconds block_seconds(const ModelShape& model, const Layout& layout, const Machine& machine,
                           const Practice& practice, bool routed, double busiest = 1);
// The embedding before the first block, the output matrix and the loss behind the last.
BlockSeconds embedding_seconds(const ModelShape& model, const Layout& layout, const Machine& machine);
BlockSeconds head_seconds(const ModelShape& model, const Layout& layout, const Machine& machine);

// Parameters of one block that one rank of tensor and expert groups holds.
struct BlockParameters {
  double dense = 0, routed = 0;
};
BlockParameters block_parameters(const ModelShape& model, const Layout& layout, bool routed);
double embedding_parameters(const ModelShape& model, const Layout& layout);  // one of the two matrices
bool routed_block(const ModelShape& model, int block);
int routed_blocks(const ModelShape& model, int first, int count);  // of so many blocks, those with experts

}  // namespace orthant::cost
