// The synthetic source: its empirical conditional entropy is the one it claims.
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/data/source.h"

namespace orthant::synthetic_test {
namespace {

Settings make_settings(std::int64_t vocabulary) {
  Settings s;
  s.data.source = "synthetic";
  s.data.sequence_length = 32;
  s.data.validation_sequences = 3;
  s.model.vocab_size = vocabulary;
  s.batch.sequences = 64;
  return s;
}

class Synthetic : public testing::TestWithParam<std::int64_t> {};

TEST_P(Synthetic, EmpiricalConditionalEntropyIsTheOneClaimed) {
  const Settings s = make_settings(GetParam());
  const auto source = make_batch_source(s);
  const std::size_t v = static_cast<std::size_t>(GetParam());
  EXPECT_EQ(source->vocabulary(), GetParam());
  std::vector<double> pairs(v * v, 0), singles(v, 0);
  double total = 0;
  for (int step = 0; step < 100; ++step) {
    const HostBatch b = source->train(step, 0, 64);
    for (std::size_t i = 0; i < b.token.size(); ++i) {
      ASSERT_LT(static_cast<std::size_t>(b.token[i]), v);
      ASSERT_LT(static_cast<std::size_t>(b.label[i]), v);
      pairs[static_cast<std::size_t>(b.token[i]) * v + static_cast<std::size_t>(b.label[i])] += 1;
      singles[b.token[i]] += 1;
      total += 1;
    }
  }
  // H(next | now) = H(now, next) - H(now), by counting 204800 transitions.
  double joint = 0, marginal = 0;
  for (const double count : pairs) {
    joint -= count > 0 ? count / total * std::log(count / total) : 0;
  }
  for (const double count : singles) {
    marginal -= count > 0 ? count / total * std::log(count / total) : 0;
  }
  EXPECT_NEAR(joint - marginal, synthetic_entropy(s), 0.01);
  EXPECT_GT(synthetic_entropy(s), 0.1);
  EXPECT_LT(synthetic_entropy(s), std::log(4.0));
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, Synthetic, testing::Values(2, 3, 4, 16, 64));

TEST(SyntheticSequences, ArePureAndValidationIsApart) {
  const Settings s = make_settings(64);
  const auto source = make_batch_source(s);
  const HostBatch whole = source->train(9, 0, 64), part = make_batch_source(s)->train(9, 60, 4);
  EXPECT_TRUE(std::equal(part.token.begin(), part.token.end(), whole.token.begin() + 60 * 32));
  EXPECT_NE(source->train(10, 0, 64).token, whole.token);
  EXPECT_EQ(source->validation_sequences(), 3);
  EXPECT_NE(source->validation(0, 3).token, source->train(0, 0, 3).token);
  EXPECT_THROW(source->validation(0, 4), Error);
  for (std::size_t i = 0; i + 1 < 32; ++i) {
    EXPECT_EQ(whole.label[i], whole.token[i + 1]);
  }
  EXPECT_THROW(make_batch_source(make_settings(1)), ConfigError);
}

}  // namespace
}  // namespace orthant::synthetic_test
