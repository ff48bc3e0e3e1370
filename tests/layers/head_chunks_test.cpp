// The head's chunks of logits: which size they have, and that a batch of several gives the gradients that its sequences
// give one at a time.
#include "core/layers/head_chunks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/experiment.h"

namespace orthant::head_chunks_test {
namespace {

using test::experiment;
using test::OneRank;

TEST(HeadChunks, HaveRowsForAFullProductAndFewBytesWhereTheVocabularyIsSmall) {
  EXPECT_EQ(tokens_a_chunk(256, false), 4096);
  EXPECT_EQ(tokens_a_chunk(4096, false), 256);
  EXPECT_EQ(tokens_a_chunk(151936, false), 256);
  EXPECT_EQ(tokens_a_chunk(256, true), 1200000);
  EXPECT_EQ(tokens_a_chunk(32000, true), 9600);
  EXPECT_EQ(tokens_a_chunk(151936, true), 2048);
}

TEST(HeadChunks, GiveWhatSequencesGiveOneAtATime) {
  constexpr std::int64_t vocabulary = 4200, tokens = 160;
  for (const char* dtype : {"fp32", "bf16"}) {
    const auto with = [&](int micro_batch) {
      return experiment({"batch.sequences=4", "data.sequence_length=" + std::to_string(tokens),
                         "model.vocab_size=" + std::to_string(vocabulary), "model.layers=1", "moe.aux_loss=0",
                         "batch.micro_batch=" + std::to_string(micro_batch),
                         std::string("run.dtype=\"") + dtype + "\""});
    };
    static_assert(tokens_a_chunk(vocabulary, false) >= tokens && 4 * tokens % tokens_a_chunk(vocabulary, false) != 0,
                  "one chunk a sequence; of all four, several and a part of one");
    OneRank whole(with(4)), apart(with(1));
    EXPECT_NEAR(whole->trainer().gradients(0).loss, apart->trainer().gradients(0).loss, 1e-5);
    const double tolerance = std::string(dtype) == "fp32" ? 1e-5 : 2e-3;
    for (const std::string& name : whole->names()) {
      const std::vector<float> a = whole->gradient(name), b = apart->gradient(name);
      ASSERT_EQ(a.size(), b.size());
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
        difference += (x - y) * (x - y);
        norm += y * y;
      }
      EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name << ", " << dtype;
    }
  }
}

}  // namespace
}  // namespace orthant::head_chunks_test
