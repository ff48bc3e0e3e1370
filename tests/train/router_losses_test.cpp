// A balance or z loss that is not finite, while loss and gradient are: the step is not applied, and the message says
// whose loss it is and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/gate.h>

#include <limits>
#include <map>
#include <mutex>

#include "parallel/local/thread_world.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"

namespace orthant::router_losses_test {
namespace {

using test::axes;
using test::experiment;
using test::Overrides;
using test::TestRank;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The core's gate, but for what it makes of one loss in every second layer. A rank is a thread.
thread_local int calls = 0;
thread_local bool sound = false;

class Unsound final : public Gate {
 public:
  Unsound(std::string loss, float value) : catalogue_(built_in_catalogue()), loss_(std::move(loss)), value_(value) {}
  GateConfig config(const Settings& settings) const override { return gate().config(settings); }
  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    gate().choose(to, from, config, s);
  }
  void losses(const Tensor& balance, const Tensor& z, const GateChoice& made, const GateInput& from,
              const GateConfig& config, Stream& s) const override {
    gate().losses(balance, z, made, from, config, s);
    if (calls++ % 2 == 1 && !sound) {
      s.fill(loss_ == "balance" ? balance : z, value_);
    }
  }

 private:
  const Gate& gate() const { return catalogue_->get<Gate>("topk"); }
  std::shared_ptr<const Catalogue> catalogue_;
  std::string loss_;
  float value_;
};

Config unsound(const std::string& loss, float value, const Overrides& overrides, const std::string& plugins = "") {
  Config config = experiment(overrides, plugins);
  const auto catalogue = built_in_catalogue();
  catalogue->add<Gate>("unsound", "A test.", std::make_shared<Unsound>(loss, value));
  config.settings.catalogue = catalogue;
  config.settings.moe.router = "unsound";
  return config;
}

std::map<std::string, std::vector<float>> weights(TestRank& rank) {
  std::map<std::string, std::vector<float>> all;
  for (const std::string& name : rank.names()) {
    all[name] = rank.weight(name);
  }
  return all;
}

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

TEST(RouterLosses, ThatAreNotFiniteAreRefusedByNameAndLayer) {
  for (const std::string& plugins : {std::string(), axes(2, 2)}) {
    for (const auto& [loss, value] : {std::pair("balance", nan), std::pair("z", infinity)}) {
      // Without coefficients, too: what nobody weighs still says that a router is ill.
      for (const Overrides& weighed : {Overrides{}, Overrides{"moe.aux_loss=0", "moe.z_loss=0"}}) {
        const Config config = unsound(loss, value, weighed, plugins);
        run_threads(check_layout(config), [&, name = std::string(loss)](Communicator& communicator) {
          calls = 0;
          TestRank rank(config, communicator);
          const auto before = weights(rank);
          const std::string message = test::error_of([&] { rank.trainer().step(0); });
          EXPECT_THAT(message,
                      AllOf(HasSubstr("step 1 is not applied: loss "), HasSubstr("of the router of layer 1"),
                            HasSubstr(" on rank 0"), HasSubstr(name == "z" ? "z loss inf" : "balance loss nan"),
                            Not(HasSubstr("loss nan, balance"))));
          EXPECT_EQ(weights(rank), before);
        });
      }
    }
  }
}

TEST(RouterLosses, AreNoReasonToRefuseAStepWhileTheyAreFinite) {
  std::vector<std::map<std::string, std::vector<float>>> found;
  for (const char* router : {"topk", "unsound"}) {
    Config config = unsound("z", nan, {});
    config.settings.moe.router = router;
    sound = true;
    test::OneRank rank(config);
    rank->trainer().step(0);
    rank->trainer().step(1);
    found.push_back(weights(*rank));
    sound = false;
  }
  EXPECT_EQ(found[0], found[1]);
}

TEST(RouterLosses, AreReasonToPassAStepOver) {
  const Config config = unsound("z", nan, {"run.skip_not_finite=1"});
  calls = 0;
  test::OneRank rank(config);
  const auto before = weights(*rank);
  EXPECT_TRUE(rank->trainer().step(0).passed_over);
  EXPECT_EQ(weights(*rank), before);
  sound = true;
  EXPECT_FALSE(rank->trainer().step(1).passed_over);
  sound = false;
  EXPECT_NE(weights(*rank), before);
}

}  // namespace
}  // namespace orthant::router_losses_test
