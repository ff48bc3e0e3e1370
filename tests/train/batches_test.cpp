// How tokens are cut into micro-batches, padded and packed changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "apps/verify/verify.h"
#include "core/data/batch_builder.h"
#include "tests/support/experiment.h"

namespace orthant::batches_test {
namespace {

using test::experiment;
using test::FixedSource;
using test::OneRank;
using test::Overrides;

constexpr std::int64_t vocabulary = 24;

struct Result {
  StepReport report;
  std::map<std::string, std::vector<float>> gradients;
};

Result gradients_of(OneRank& rank) {
  Result result{rank->trainer().gradients(0), {}};
  for (const std::string& name : rank->names()) {
    result.gradients[name] = rank->gradient(name);
  }
  return result;
}

void expect_equal(const Result& a, const Result& b) {
  EXPECT_NEAR(a.report.loss, b.report.loss, 1e-6);
  EXPECT_NEAR(a.report.aux_loss, b.report.aux_loss, 1e-6);
  EXPECT_NEAR(a.report.z_loss, b.report.z_loss, 1e-6);
  EXPECT_NEAR(a.report.grad_norm, b.report.grad_norm, 1e-5 * b.report.grad_norm);
  EXPECT_EQ(a.report.tokens, b.report.tokens);
  ASSERT_EQ(a.report.layers.size(), b.report.layers.size());
  for (std::size_t i = 0; i < a.report.layers.size(); ++i) {
    EXPECT_EQ(a.report.layers[i].load, b.report.layers[i].load);
    EXPECT_EQ(a.report.layers[i].kept, b.report.layers[i].kept);
    EXPECT_EQ(a.report.layers[i].choices, b.report.layers[i].choices);
    EXPECT_EQ(a.report.layers[i].dropped_by_capacity, b.report.layers[i].dropped_by_capacity);
  }
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, gradient] : b.gradients) {
    EXPECT_LE(test::relative_difference(a.gradients.at(name), gradient), 1e-5) << name;
  }
}

// --- accumulation

TEST(Batches, MicroBatchesAddUpToOneBatch) {
  for (const char* capacity : {"moe.capacity_factor=0.0", "moe.capacity_factor=1.0"}) {
    OneRank whole(experiment({capacity, "moe.aux_loss=0.5", "moe.z_loss=0.1"}));
    const Result expected = gradients_of(whole);
    for (int micro : {1, 2, 4}) {
      OneRank parts(
          experiment({capacity, "moe.aux_loss=0.5", "moe.z_loss=0.1", fmt::format("batch.micro_batch={}", micro)}));
      expect_equal(gradients_of(parts), expected);
    }
  }
}

// A second step starts from nothing: gradients do not carry over, nor do counters.
TEST(Batches, StepsDoNotAddUp) {
  OneRank once(experiment({"batch.micro_batch=2"})), again(experiment({"batch.micro_batch=2"}));
  const Result expected = gradients_of(once);
  again->trainer().gradients(5);
  expect_equal(gradients_of(again), expected);
}

// --- documents

using Document = std::vector<std::int32_t>;

std::vector<Document> documents() {
  std::vector<Document> all;
  std::int32_t next = 1;
  for (std::size_t length : {7, 5, 9, 3, 6, 6, 4, 8}) {
    Document d;
    for (std::size_t i = 0; i < length; ++i) {
      next = (next * 7 + 5 + static_cast<std::int32_t>(i * i)) % static_cast<std::int32_t>(vocabulary);
      d.push_back(next);
    }
    all.push_back(d);
  }
  return all;
}

// One document a sequence of `positions`, the rest padding.
HostBatch separate(std::int64_t positions) {
  const std::vector<Document> all = documents();
  HostBatch batch = padding_batch(0, static_cast<std::int64_t>(all.size()), positions);
  for (std::size_t row = 0; row < all.size(); ++row) {
    put_document(batch, static_cast<std::int64_t>(row), 0, all[row], static_cast<std::int64_t>(all[row].size()));
  }
  return batch;
}

// Two documents a sequence: 7 + 5, 9 + 3, 6 + 6, 4 + 8 tokens.
HostBatch packed() {
  const std::vector<Document> all = documents();
  HostBatch batch = padding_batch(0, 4, 12);
  for (std::size_t row = 0; row < 4; ++row) {
    const Document &a = all[2 * row], &b = all[2 * row + 1];
    const auto at = static_cast<std::int64_t>(row);
    put_document(batch, at, 0, a, static_cast<std::int64_t>(a.size()));
    put_document(batch, at, static_cast<std::int64_t>(a.size()), b, static_cast<std::int64_t>(b.size()));
  }
  return batch;
}

Result on(const HostBatch& batch, Overrides overrides) {
  const FixedSource source(batch, vocabulary);
  overrides.push_back(fmt::format("data.sequence_length={}", batch.positions));
  overrides.push_back(fmt::format("batch.sequences={}", batch.sequences));
  OneRank rank(experiment(overrides), &source);
  return gradients_of(rank);
}

// More padding: neither routing, capacity, losses, counters nor gradients see it.
TEST(Batches, PaddingChangesNothing) {
  const std::vector<Overrides> cases = {
      {"moe.aux_loss=0.5", "moe.z_loss=0.1"},
      {"moe.aux_loss=0.5", "moe.capacity_factor=1.0"},
      {"moe.capacity_factor=0.5", R"(moe.drop_policy="probability")", "moe.top_k=1", R"(moe.router="switch")"},
      {"moe.shared_experts=1", R"(model.norm="layernorm")", R"(model.activation="gelu")"},
      {"moe.experts=0"},
  };
  for (const Overrides& overrides : cases) {
    const Result expected = on(separate(9), overrides);
    EXPECT_EQ(expected.report.tokens, 48);
    expect_equal(on(separate(10), overrides), expected);
    expect_equal(on(separate(24), overrides), expected);
  }
}

// A sequence of nothing but padding changes nothing either.
TEST(Batches, SequencesOfPaddingChangeNothing) {
  const Overrides overrides = {"moe.aux_loss=0.5", "moe.capacity_factor=1.0"};
  HostBatch more = padding_batch(0, 10, 9);
  const std::vector<Document> all = documents();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i < 3 ? i : i + 1);  // sequences 3 and 9 stay empty
    put_document(more, row, 0, all[i], static_cast<std::int64_t>(all[i].size()));
  }
  expect_equal(on(more, overrides), on(separate(9), overrides));
}

// Without capacity and balance, which are counted over sequences, packing documents changes nothing.
TEST(Batches, PackedDocumentsEqualSeparateOnes) {
  for (const char* model : {R"(model.positions="rotary")", "model.kv_heads=2", R"(moe.router="switch")"}) {
    const Overrides overrides = {
        "moe.aux_loss=0", "moe.z_loss=0.1", model,
        std::string(model).find("switch") == std::string::npos ? "moe.top_k=2" : "moe.top_k=1"};
    Result together = on(packed(), overrides), apart = on(separate(9), overrides);
    together.report.aux_loss = apart.report.aux_loss = 0;  // measured over other groups
    expect_equal(together, apart);
  }
}

// The same tokens in another step meet other noise; without noise they give the same bits.
TEST(Batches, NoiseChangesFromStepToStep) {
  const FixedSource source(separate(9), vocabulary);
  auto losses_differ = [&](const char* noise) {
    OneRank rank(experiment({"data.sequence_length=9", "moe.router=\"gshard\"", noise}), &source);
    return rank->trainer().gradients(0).loss != rank->trainer().gradients(1).loss;
  };
  EXPECT_TRUE(losses_differ("model.dropout=0.2"));
  EXPECT_TRUE(losses_differ("moe.jitter=0.2"));
  EXPECT_TRUE(losses_differ("moe.aux_loss=0")) << "second experts are drawn anew";
  OneRank quiet(experiment({"data.sequence_length=9"}), &source);
  EXPECT_EQ(quiet->trainer().gradients(0).loss, quiet->trainer().gradients(1).loss);
}

// Labels of padding and of document ends do not count: the loss is a mean over those that do.
TEST(Batches, LossIsAMeanOverCountedTokens) {
  const Result all = on(separate(9), {"model.init_std=0.0001"});
  EXPECT_EQ(all.report.tokens, 48);
  EXPECT_NEAR(all.report.loss, std::log(24.0), 1e-3) << "a model that knows nothing";
}

}  // namespace
}  // namespace orthant::batches_test
