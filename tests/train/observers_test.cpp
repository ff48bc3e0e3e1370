// Hooks: when they are called, what they change, and that they change nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/train/observers.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"

namespace orthant::observers_test {
namespace {

using test::experiment;
using test::OneRank;
using testing::HasSubstr;

using Act = std::function<void(const StepReport&, Changes&, std::map<std::string, double>&)>;

class Acting final : public Observer {
 public:
  explicit Acting(Act act) : act_(std::move(act)) {}
  void after_step(const StepReport& report, Changes& changes, std::map<std::string, double>& metrics) override {
    act_(report, changes, metrics);
  }

 private:
  Act act_;
};

class ActingHook final : public Hook {
 public:
  explicit ActingHook(Act act) : act_(std::move(act)) {}
  std::unique_ptr<Observer> make(const Settings&) const override { return std::make_unique<Acting>(act_); }

 private:
  Act act_;
};

Config with_hooks(const std::vector<std::pair<std::string, Act>>& hooks, const test::Overrides& overrides = {}) {
  Config config = experiment(overrides);
  const auto catalogue = built_in_catalogue();
  for (const auto& [name, act] : hooks) {
    catalogue->add<Hook>(name, "A test.", std::make_shared<ActingHook>(act));
  }
  config.settings.catalogue = catalogue;
  return config;
}

std::map<std::string, std::vector<float>> weights(OneRank& rank) {
  std::map<std::string, std::vector<float>> all;
  for (const std::string& name : rank->names()) {
    all[name] = rank->weight(name);
  }
  return all;
}

TEST(Observers, AreCalledOnceAStepInOrderAndChangeNothing) {
  std::vector<std::string> calls;
  auto note = [&](const std::string& name) {
    return [&calls, name](const StepReport& report, Changes&, std::map<std::string, double>& metrics) {
      calls.push_back(fmt::format("{} {}", name, report.step));
      metrics["seen"] = static_cast<double>(report.tokens);
    };
  };
  OneRank plain(experiment()), watched(with_hooks({{"b", note("b")}, {"a", note("a")}}));
  for (int step = 0; step < 2; ++step) {
    const StepReport one = plain->trainer().step(step), other = watched->trainer().step(step);
    EXPECT_EQ(one.loss, other.loss);
    EXPECT_EQ(one.grad_norm, other.grad_norm);
    EXPECT_EQ(other.metrics, (std::map<std::string, double>{{"a.seen", 96}, {"b.seen", 96}}));
  }
  plain->trainer().validate();
  watched->trainer().validate();
  EXPECT_EQ(calls, (std::vector<std::string>{"b 0", "a 0", "b 1", "a 1"}));
  EXPECT_EQ(weights(plain), weights(watched));
}

TEST(Observers, TheFactorIsThatOfTheNextSteps) {
  const Act halve = [](const StepReport& report, Changes& changes, std::map<std::string, double>&) {
    changes.lr_factor = report.step == 0 ? 0.5 : changes.lr_factor;
  };
  OneRank watched(with_hooks({{"halve", halve}, {"halve_too", halve}}));
  EXPECT_DOUBLE_EQ(watched->trainer().step(0).lr, 0.01);
  EXPECT_DOUBLE_EQ(watched->trainer().step(1).lr, 0.0025);
  EXPECT_DOUBLE_EQ(watched->trainer().step(2).lr, 0.0025);
}

TEST(Observers, TheUpdateUsesTheFactor) {
  const Act tiny = [](const StepReport&, Changes& changes, std::map<std::string, double>&) {
    changes.lr_factor = 1e-30;
  };
  OneRank rank(with_hooks({{"tiny", tiny}}));
  const auto start = weights(rank);
  rank->trainer().step(0);
  const auto after_one = weights(rank);
  rank->trainer().step(1);
  EXPECT_NE(start, after_one);
  EXPECT_EQ(after_one, weights(rank));
}

TEST(Observers, RefuseAFactorThatIsNone) {
  for (const double factor : {0.0, -1.0, std::nan("")}) {
    const Act wrong = [&](const StepReport&, Changes& changes, std::map<std::string, double>&) {
      changes.lr_factor = factor;
    };
    OneRank rank(with_hooks({{"wrong", wrong}}));
    EXPECT_THAT(test::error_of([&] { rank->trainer().step(0); }), HasSubstr("hook 'wrong' sets lr_factor to"));
  }
}

// The reference is a run that was configured with the smaller factor, at the same weights.
TEST(Observers, TheShareOfTheCapacityIsThatOfTheNextSteps) {
  // name, top_k; of the experts' choice none is written
  for (const auto& [gate, top_k] : {std::pair("switch", 1), {"gshard", 2}, {"topk", 2}, {"expert_choice", 0}}) {
    SCOPED_TRACE(gate);
    const test::Overrides chosen = {fmt::format("moe.router=\"{}\"", gate), fmt::format("moe.top_k={}", top_k)};
    const test::Overrides at_whole = test::joined(chosen, {"moe.capacity_factor=1.5"}),
                          at_half = test::joined(chosen, {"moe.capacity_factor=0.75"});
    const Act halve = [](const StepReport&, Changes& changes, std::map<std::string, double>&) {
      changes.capacity_share = 0.5;
    };
    OneRank changed(with_hooks({{"halve", halve}}, at_whole)), whole(experiment(at_whole)), half(experiment(at_half));
    EXPECT_EQ(changed->trainer().step(0).loss, whole->trainer().step(0).loss);
    for (const std::string& name : changed->names()) {
      half->set_weight(name, changed->weight(name));
    }
    const StepReport one = changed->trainer().step(1), other = half->trainer().step(1),
                     without = whole->trainer().step(1);
    EXPECT_EQ(one.loss, other.loss);
    EXPECT_EQ(one.grad_norm, other.grad_norm);
    for (std::size_t i = 0; i < one.layers.size(); ++i) {
      EXPECT_EQ(one.layers[i].kept, other.layers[i].kept);
    }
    EXPECT_NE(one.loss, without.loss);
    // Validation keeps the configured capacity.
    for (const std::string& name : changed->names()) {
      whole->set_weight(name, changed->weight(name));
    }
    EXPECT_EQ(changed->trainer().validate(), whole->trainer().validate());
  }
}

TEST(Observers, RefuseAShareOfTheCapacityThatIsNone) {
  for (const double share : {0.0, -1.0, 1.5, std::nan("")}) {
    const Act wrong = [&](const StepReport&, Changes& changes, std::map<std::string, double>&) {
      changes.capacity_share = share;
    };
    OneRank rank(with_hooks({{"wrong", wrong}}, {"moe.capacity_factor=1.5"}));
    EXPECT_THAT(test::error_of([&] { rank->trainer().step(0); }), HasSubstr("hook 'wrong' sets capacity_share to"));
  }
  const Act half = [](const StepReport&, Changes& changes, std::map<std::string, double>&) {
    changes.capacity_share = 0.5;
  };
  OneRank dropless(with_hooks({{"half", half}}, {"moe.capacity_factor=0"}));
  EXPECT_THAT(test::error_of([&] { dropless->trainer().step(0); }), HasSubstr("this run has no capacity"));
}

TEST(Observers, KeepTheirChangesInCheckpoints) {
  const Act half = [](const StepReport& report, Changes& changes, std::map<std::string, double>&) {
    if (report.step == 0) {
      changes = {.lr_factor = 0.25, .capacity_share = 0.5};
    }
  };
  const Config config = with_hooks({{"half", half}}, {"moe.capacity_factor=1.5"});
  Observers before(config.settings), after(config.settings), older(config.settings);
  StepReport report;
  before.after_step(report);
  std::map<std::string, std::string> state = before.state();
  after.restore(state);
  EXPECT_EQ(after.capacity_share(), 0.5);
  EXPECT_EQ(after.lr_factor(), 0.25);
  // A checkpoint from before there was a share.
  state.erase("hook/half/capacity_share");
  older.restore(state);
  EXPECT_EQ(older.capacity_share(), 1);
  EXPECT_EQ(older.lr_factor(), 0.25);
  // A run that goes on without a capacity has none that a share could be of.
  Observers dropless(with_hooks({{"half", half}}, {"moe.capacity_factor=0"}).settings);
  dropless.restore(before.state());
  EXPECT_EQ(dropless.capacity_share(), 1);
  EXPECT_EQ(dropless.lr_factor(), 0.25);
  for (const char* wrong : {"0", "-0.5", "1.5", "nan"}) {
    state["hook/half/capacity_share"] = wrong;
    EXPECT_THAT(test::error_of([&] { after.restore(state); }),
                HasSubstr(fmt::format("the checkpoint's 'hook/half/capacity_share' is {}: it must be above 0 and at "
                                      "most 1",
                                      wrong)));
  }
}

TEST(Observers, AStepThatIsRefusedIsNotSeen) {
  int calls = 0;
  const Act count = [&](const StepReport&, Changes&, std::map<std::string, double>&) { ++calls; };
  OneRank rank(with_hooks({{"count", count}}));
  rank->set_weight("model.norm.weight", std::vector<float>(16, INFINITY));
  EXPECT_THROW(rank->trainer().step(0), Error);
  EXPECT_EQ(calls, 0);
}

TEST(Observers, TellWhichHooksAreGone) {
  const Act nothing = [](const StepReport&, Changes&, std::map<std::string, double>&) {};
  Observers with(with_hooks({{"one", nothing}, {"two", nothing}}).settings),
      without(with_hooks({{"one", nothing}}).settings);
  EXPECT_EQ(without.restore(with.state()), std::vector<std::string>{"two"});
  EXPECT_THAT(with.restore(without.state()), testing::IsEmpty());
}

}  // namespace
}  // namespace orthant::observers_test
