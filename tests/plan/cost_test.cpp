// The operations that a model needs, against published numbers of active parameters.
#include <gtest/gtest.h>

#include "core/arch/links.h"

namespace orthant::cost_test {
namespace {

// Mixtral-8x7B: 12.88 billion parameters are active for a token (Jiang et al., "Mixtral of Experts"), of which the
// table of embeddings, 32000 x 4096, is no product. Each other one is multiplied and added once forward and twice
// backward.
TEST(TrainingFlops, OfMixtralAreSixAnActiveParameter) {
  Settings s;
  s.data.sequence_length = 2;  // attention is next to nothing
  s.model = {.layers = 32, .d_model = 4096, .heads = 32, .kv_heads = 8, .vocab_size = 32000};
  s.model.activation = Activation::swiglu;
  s.moe.experts = 8;
  s.moe.top_k = 2;
  s.moe.d_expert = 14336;
  EXPECT_NEAR(training_flops(links_of(s)), 6 * (12.88e9 - 32000.0 * 4096), 6 * 0.01e9);
}

// Multi-token prediction: two halves joined, a block as the last one, and the head once more, for each depth.
TEST(TrainingFlops, OfADepthAreABlockAndAHead) {
  Settings s;
  s.data.sequence_length = 64;
  s.model = {.layers = 3, .d_model = 64, .heads = 4, .d_ff = 128, .vocab_size = 100};
  s.moe.experts = 8;
  s.moe.top_k = 2;
  s.moe.first_dense = 1;
  const double without = training_flops(links_of(s));
  s.model.layers = 4;
  const double block = training_flops(links_of(s)) - without;
  s.model.layers = 3;
  s.model.mtp_depth = 2;
  EXPECT_DOUBLE_EQ(training_flops(links_of(s)) - without, 2 * (block + 6.0 * 64 * (128 + 100)));
  EXPECT_EQ(links_of(s).size(), 7u);
}

// "PaLM", appendix B: attention needs 12 L H Q T a token when every position sees all T; half of them here.
TEST(TrainingFlops, OfAttentionGrowWithTheSequence) {
  Settings s;
  s.model = {.layers = 3, .d_model = 64, .heads = 4, .d_ff = 128, .vocab_size = 100};
  s.data.sequence_length = 1000;
  const double longer = training_flops(links_of(s));
  s.data.sequence_length = 500;
  EXPECT_NEAR(longer - training_flops(links_of(s)), 12.0 / 2 * 3 * 64 * 500, 1);
}

}  // namespace
}  // namespace orthant::cost_test
