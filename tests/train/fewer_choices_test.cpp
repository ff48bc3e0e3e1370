// A gate that wants fewer experts for some tokens drops nothing.
#include <gtest/gtest.h>

#include <orthant/gate.h>

#include "tests/support/experiment.h"

namespace orthant::fewer_choices_test {
namespace {

// The first expert for every token, and the second for every other one.
class EveryOther final : public Gate {
 public:
  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.apply({.name = "test/every_other",
             .inputs = {from.valid},
             .outputs = {to.expert},
             .host = [k_count = static_cast<std::size_t>(config.top_k)](const HostArguments& a) {
               const auto valid = a.input<std::uint8_t>(0);
               const auto expert = a.output<std::int32_t>(0);
               for (std::size_t i = 0; i < expert.size(); ++i) {
                 const std::size_t token = i / k_count, k = i % k_count;
                 const bool wanted = valid[token] != 0 && (k == 0 || (k == 1 && token % 2 == 0));
                 expert[i] = wanted ? static_cast<std::int32_t>(k) : -1;
               }
             }});
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
  }
};

TEST(FewerChoices, AreNoDrops) {
  Config config = test::experiment({"moe.capacity_factor=0", "moe.top_k=2"});
  const auto catalogue = built_in_catalogue();
  catalogue->add<Gate>("every_other", "A test.", std::make_shared<EveryOther>());
  config.settings.catalogue = catalogue;
  config.settings.moe.router = "every_other";
  test::OneRank rank(config);
  const StepReport report = rank->trainer().step(0);
  ASSERT_FALSE(report.layers.empty());
  for (const LayerCounters& layer : report.layers) {
    EXPECT_EQ(layer.choices, report.tokens * 3 / 2);
    EXPECT_EQ(layer.dropped_by_chance, 0);
    EXPECT_EQ(layer.dropped_by_capacity, 0);
  }
  EXPECT_EQ(report.drop_rate(), 0);
}

}  // namespace
}  // namespace orthant::fewer_choices_test
