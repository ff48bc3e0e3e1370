// memory.recompute = "fit": the cheapest choice that keeps the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/dry_run/promise.h"
#include "tests/plan/memory_refusal.h"
#include "tests/support/experiment.h"

namespace orthant::plan_test::fit_test {
namespace {

using test::axes;
using test::experiment;
using test::joined;
using test::Overrides;

TEST(Fit, IsTheCheapestThatKeepsTheLimit) {
  const Overrides overrides = {"moe.every=2", "model.layers=4", "model.d_ff=64", "data.sequence_length=48"};
  std::int64_t before = std::int64_t{1} << 60;
  for (const char* choice : {"none", "selective", "full"}) {
    const Overrides with = joined(overrides, {fmt::format(R"(memory.recompute="{}")", choice)});
    const std::int64_t bytes = memory_need(experiment(with, axes(2, 2))).worst;
    ASSERT_LT(bytes, before) << choice << " saves nothing here";
    for (const std::int64_t enough : {bytes, before - 1}) {
      Config config = experiment(joined(overrides, {R"(memory.recompute="fit")", limit(enough)}), axes(2, 2));
      EXPECT_THAT(promise_memory(config), testing::HasSubstr(fmt::format("\"fit\" is \"{}\"", choice)));
      EXPECT_EQ(config.settings.memory.recompute, choice);
      EXPECT_EQ(config.table("memory").text("recompute"), "fit") << "what was written stays";
    }
    before = bytes;
  }
  const std::string text =
      refusal_of(experiment(joined(overrides, {R"(memory.recompute="fit")", limit(before - 1)}), axes(2, 2)));
  EXPECT_THAT(text, testing::HasSubstr("this run may need"));
}

// Beside every choice that there is, with its price in operations.
TEST(Fit, KeepsAsManyMicroBatchesOfAPipelineAsFit) {
  const Overrides overrides = {"model.layers=12", "moe.every=2", "model.d_ff=64", "data.sequence_length=48",
                               "batch.micro_batch=1"};
  const std::string plugins = "[plugins.pipeline]\nsize = 4\n" + axes(2, 2);
  const auto with = [&](const char* recompute, int keep) {
    Config config = experiment(overrides, plugins);
    config.settings.memory.recompute = recompute;
    config.settings.memory.keep_micro_batches = keep;
    return memory_need(config);
  };
  struct Choice {
    std::string recompute;
    int keep;
    Need need;
    double price;
  };
  const Need none = with("none", 0);
  std::vector<Choice> choices = {{"none", 0, none, 0}};
  std::set<std::int64_t> limits = {none.worst};
  for (const char* recompute : {"selective", "full"}) {
    for (int keep = 0; keep < 4; ++keep) {
      const Need need = with(recompute, keep);
      choices.push_back({recompute, keep, need, need.recomputed + 5000 * static_cast<double>(need.sent - none.sent)});
      limits.insert(need.worst);
    }
    EXPECT_EQ(with(recompute, 4).worst, none.worst) << "four are in flight on the first stage, and all keep";
    EXPECT_EQ(with(recompute, 4).recomputed, 0);
  }
  ASSERT_GE(limits.size(), 6u) << "choices that hold equally much";
  std::set<std::string> chosen;
  for (const std::int64_t bytes : limits) {
    const Choice* cheapest = nullptr;
    for (const Choice& choice : choices) {
      if (choice.need.worst <= bytes && (cheapest == nullptr || choice.price < cheapest->price)) {
        cheapest = &choice;
      }
    }
    Config config = experiment(joined(overrides, {R"(memory.recompute="fit")", limit(bytes)}), plugins);
    const std::string note = promise_memory(config);
    EXPECT_EQ(config.settings.memory.recompute, cheapest->recompute) << note;
    EXPECT_EQ(config.settings.memory.keep_micro_batches, cheapest->keep) << note;
    chosen.insert(fmt::format("{} {}", cheapest->recompute, cheapest->keep));
  }
  EXPECT_GE(chosen.size(), 4u) << "the limits tell no choices apart";
}

TEST(Fit, ARefusalNamesHowManyMicroBatchesMayKeep) {
  const Overrides overrides = {"model.layers=8", "moe.experts=0", "data.sequence_length=48", "batch.micro_batch=1"};
  const std::string plugins = "[plugins.pipeline]\nsize = 4\n";
  const Need need = memory_need(experiment(overrides, plugins));
  const Refused found = refused(overrides, plugins, need.worst - 1);
  EXPECT_THAT(found.text, testing::HasSubstr("memory.recompute = \"full\" and memory.keep_micro_batches = "));
  const Overrides kept = joined(overrides, {R"(memory.recompute="full")", "memory.keep_micro_batches=3"});
  const Need less = memory_need(experiment(kept, plugins));
  EXPECT_THAT(refused(kept, plugins, less.worst - 1).changes, testing::Contains("memory.keep_micro_batches = 2"));
}

// One forward of each block again for each micro-batch that does not keep: every other one of the first stage's eight.
TEST(Fit, CountsWhatIsComputedAgain) {
  const Overrides overrides = {"model.layers=4", "moe.experts=0", "batch.micro_batch=1", R"(memory.recompute="full")"};
  const auto classes = [&](int keep) {
    return plan_classes(experiment(joined(overrides, {fmt::format("memory.keep_micro_batches={}", keep)}),
                                   "[plugins.pipeline]\nsize = 2\nschedule = \"1f1b\"\n"));
  };
  const std::vector<RankClass> all = classes(0), half = classes(1);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].recomputed.pairs, 8);
  EXPECT_EQ(all[0].recomputed.kept, 0);
  EXPECT_EQ(half[0].recomputed.kept, 4);
  EXPECT_EQ(half[1].recomputed.kept, 8) << "the last stage has one in flight";
  EXPECT_DOUBLE_EQ(half[0].recomputed.flops, all[0].recomputed.flops / 2);
  EXPECT_EQ(half[1].recomputed.flops, 0);
  EXPECT_EQ(classes(2)[0].recomputed.flops, 0);
  // For each of 96 tokens and four blocks of d = f = 16: queries, keys, values and the output 8 d^2, scores and sums
  // over half of 12 tokens 4 d each, three matrices of the FFN 6 d f, what memory bounds 80 d.
  const double d = 16, f = 16, block = 8 * d * d + 4 * d * 6 + 6 * d * f + 80 * d;
  EXPECT_DOUBLE_EQ(all[0].recomputed.flops + all[1].recomputed.flops, 96 * 4 * block);
}

TEST(Fit, NeedsALimit) {
  EXPECT_THAT(test::refusal({R"(memory.recompute="fit")"}, ""), testing::HasSubstr("needs a limit"));
}

}  // namespace
}  // namespace orthant::plan_test::fit_test
