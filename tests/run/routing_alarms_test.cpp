// Alarms about routers: from reports made by hand, and from runs with planted troubles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/validate.h"
#include "core/run/routing_alarms.h"
#include "tests/support/experiment.h"

namespace orthant::routing_alarms_test {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Settings settings(const Overrides& overrides = {}) {
  return experiment(test::joined({"moe.experts=8", "moe.top_k=1"}, overrides)).settings;
}

StepReport report(std::vector<std::int64_t> load, double of_loss = 1, double of_balance = 0.5) {
  StepReport r;
  r.layers.push_back({.block = 0, .load = std::move(load), .kept = {}});
  r.routing.push_back({.block = 0, .margin = {}, .grad_norm_loss = of_loss, .grad_norm_balance = of_balance});
  return r;
}

const std::vector<std::int64_t> even(8, 100);
const std::vector<std::int64_t> one_has_all = {0, 1, 0, 797, 2, 0, 0, 0};
const std::vector<std::int64_t> two_dead = {150, 150, 0, 100, 100, 0, 150, 150};

TEST(RoutingAlarms, BeginWithTheThirdReportInARowAndEndWithAGoodOne) {
  RoutingAlarms alarms(settings());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(alarms.after(report(one_has_all)), IsEmpty());
  }
  EXPECT_THAT(alarms.after(report(even)), IsEmpty());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(alarms.after(report(one_has_all)), IsEmpty());
  }
  const auto collapse = AllOf(HasSubstr("block 0 has collapsed: 1 of its 8 experts have 100 % of the choices"),
                              HasSubstr("moe.aux_loss"));
  EXPECT_THAT(alarms.after(report(one_has_all)), ElementsAre(collapse));
  EXPECT_THAT(alarms.begun(), ElementsAre(collapse));
  EXPECT_THAT(alarms.after(StepReport()), IsEmpty()) << "not measured";
  EXPECT_THAT(alarms.after(report(one_has_all)), ElementsAre(collapse)) << "it lasts";
  EXPECT_THAT(alarms.begun(), IsEmpty()) << "and is told once";
  EXPECT_THAT(alarms.after(report(even)), IsEmpty());
}

TEST(RoutingAlarms, NameDeadExperts) {
  RoutingAlarms alarms(settings()), biased(settings({R"(moe.router="bias")"})), small(settings());
  for (int i = 0; i < 2; ++i) {
    alarms.after(report(two_dead));
    biased.after(report(two_dead));
    small.after(report({3, 3, 0, 3, 3, 0, 3, 3}));
  }
  EXPECT_THAT(alarms.after(report(two_dead)),
              ElementsAre(AllOf(HasSubstr("block 0 has 2 dead experts of 8 (2, 5)"), HasSubstr("moe.aux_loss"))));
  EXPECT_THAT(biased.after(report(two_dead)), ElementsAre(HasSubstr("moe.bias_update_rate")));
  EXPECT_THAT(small.after(report({3, 3, 0, 3, 3, 0, 3, 3})), IsEmpty()) << "chance leaves some without a choice";
}

TEST(RoutingAlarms, AnExpertThatIsIdleNowAndThenIsNotDead) {
  RoutingAlarms alarms(settings());
  const std::vector<std::int64_t> others = {0, 150, 150, 100, 100, 0, 150, 150};
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(alarms.after(report({150, 150, 150, 100, 100, 150, 0, 0})), IsEmpty());
    EXPECT_THAT(alarms.after(report(two_dead)), IsEmpty());
    EXPECT_THAT(alarms.after(report(others)), IsEmpty());
  }
  EXPECT_THAT(alarms.after(report(two_dead)), ElementsAre(HasSubstr("1 dead expert of 8 (5): no token chooses it")));
  EXPECT_EQ(alarms.begun().size(), 1u);
}

TEST(RoutingAlarms, NameARouterThatTheLossDoesNotTrain) {
  RoutingAlarms alarms(settings({R"(moe.router="topk")"})), other(settings({R"(moe.router="switch")"}));
  RoutingAlarms nothing(settings());
  for (int i = 0; i < 2; ++i) {
    alarms.after(report(even, 0, 0.1));
    other.after(report(even, 1e-6, 0.1));
    nothing.after(report(even, 0, 0));
  }
  EXPECT_THAT(alarms.after(report(even, 0, 0.1)),
              ElementsAre(AllOf(HasSubstr("auxiliary losses alone"), HasSubstr("moe.normalize_weights = false"))));
  EXPECT_THAT(other.after(report(even, 1e-6, 0.1)), ElementsAre(HasSubstr("lower moe.aux_loss")));
  EXPECT_THAT(nothing.after(report(even, 0, 0)), IsEmpty()) << "a gate without any gradient";
}

TEST(RoutingAlarms, AreSilentBeforeRoutersCanHaveLearnt) {
  const auto first_alarm = [](const Overrides& overrides) {
    RoutingAlarms alarms(settings(overrides));
    StepReport bad = report(one_has_all);
    while (alarms.after(bad).empty()) {
      ++bad.step;
    }
    return bad.step;
  };
  EXPECT_EQ(first_alarm({"run.steps=10"}), 2);
  EXPECT_EQ(first_alarm({"run.steps=400", "optimizer.warmup_steps=50"}), 52);
  EXPECT_EQ(first_alarm({"run.steps=400"}), 22);
  EXPECT_EQ(first_alarm({"run.steps=1000000"}), 102);
}

// What both experts of a token have is no collapse where there are no others.
TEST(RoutingAlarms, AreSilentWhereEveryExpertIsChosen) {
  RoutingAlarms alarms(experiment({"moe.experts=2", "moe.top_k=2"}).settings);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(alarms.after(report({100, 100})), IsEmpty());
  }
}

std::vector<std::string> alarms_of(const Config& config, int steps, bool plant) {
  OneRank rank(config);
  RoutingAlarms alarms(config.settings);
  std::vector<std::string> begun;
  for (int step = 0; step < steps; ++step) {
    for (int layer = 0; plant && layer < 2; ++layer) {  // equal logits: ties go to the lower numbers
      const std::string name = fmt::format("model.layers.{}.block_sparse_moe.gate.weight", layer);
      rank->set_weight(name, std::vector<float>(static_cast<std::size_t>(config.settings.moe.experts) * 16, 0.0f));
    }
    alarms.after(rank->trainer().step(step, true));
    begun.insert(begun.end(), alarms.begun().begin(), alarms.begun().end());
  }
  return begun;
}

TEST(RoutingAlarms, FireOnAPlantedCollapseAndNotOnAHealthyRun) {
  for (const char* router : {"switch", "topk", "gshard"}) {
    const bool one = std::string(router) == "switch";
    const Config config = experiment({fmt::format("moe.router=\"{}\"", router), one ? "moe.top_k=1" : "moe.top_k=2",
                                      "moe.aux_loss=0.1", "batch.sequences=16"});
    EXPECT_THAT(alarms_of(config, 5, true),
                ElementsAre(HasSubstr("block 0 has collapsed"), HasSubstr("block 1 has collapsed")))
        << router;
    EXPECT_THAT(alarms_of(config, 12, false), IsEmpty()) << router;
  }
}

TEST(RoutingAlarms, ATrainedRouterOfConstantWeightsIsWarnedOfBeforeAndAfterTheStart) {
  const Overrides constant = {R"(moe.router="topk")", "moe.top_k=1"};
  const Config config = experiment(constant);
  EXPECT_THAT(warnings(config.settings), ElementsAre(AllOf(HasSubstr("top_k = 1"), HasSubstr("normalize_weights"))));
  EXPECT_THAT(alarms_of(config, 3, false), ElementsAre(HasSubstr("block 0 learns"), HasSubstr("block 1 learns")));
  EXPECT_THAT(warnings(experiment({R"(moe.router="bias")", "moe.top_k=1"}).settings), ElementsAre(HasSubstr("bias")));
  for (const Overrides& healthy :
       {test::joined(constant, {"moe.normalize_weights=false"}), Overrides{R"(moe.router="topk")", "moe.top_k=2"},
        Overrides{R"(moe.router="switch")", "moe.top_k=1"}}) {
    EXPECT_THAT(warnings(experiment(healthy).settings), IsEmpty());
  }
}

}  // namespace
}  // namespace orthant::routing_alarms_test
