#include "tests/support/parity.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace orthant::test {

const Snapshot& reference_of(const Overrides& overrides, int steps) {
  static std::map<std::pair<Overrides, int>, Snapshot> known;
  const auto [found, is_new] = known.try_emplace({overrides, steps});
  if (is_new) {
    found->second = take_snapshot(one_rank(experiment(overrides)), steps);
  }
  return found->second;
}

std::string differences(const VerifyReport& report) {
  std::string text = report.first_difference;
  for (const Comparison& row : report.rows) {
    if (!row.ok()) {
      text += fmt::format("\n{} differs by {:.3g}, allowed {:.3g}, at {}", row.quantity, row.difference, row.tolerance,
                          row.where);
    }
  }
  return text;
}

void expect_parity(const Overrides& overrides, const std::string& plugins, const ParityOptions& options) {
  SCOPED_TRACE(testing::PrintToString(joined(overrides, options.only_here)) + " over\n" + plugins);
  const Config config = experiment(joined(overrides, options.only_here), plugins);
  const Snapshot layout = take_snapshot(config, options.steps);
  if (options.ranks > 0) {
    ASSERT_EQ(layout.world_size, options.ranks);
  } else {
    ASSERT_GT(layout.world_size, 1);
  }
  const Snapshot& reference = reference_of(overrides, options.steps);
  ASSERT_EQ(reference.world_size, 1);
  const ComputeType dtype = config.settings.run.dtype;
  const VerifyReport report = compare(layout, reference, config.settings);
  EXPECT_TRUE(report.ok()) << differences(report);
  for (const Comparison& row : report.rows) {
    if (dtype == ComputeType::fp32 && row.quantity == "later gradient") {
      EXPECT_LE(row.difference, options.later_gradients) << "at " << row.where;
    }
  }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same_bits(const Tensors& a, const Tensors& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    ASSERT_NE(other, b.end()) << what << " " << name;
    EXPECT_TRUE(same_bits(values, other->second)) << what << " " << name;
  }
}

void expect_same_bits(const Snapshot& a, const Snapshot& b, const std::string& what, double sum_tolerance) {
  ASSERT_EQ(a.reports.size(), b.reports.size()) << what;
  for (std::size_t i = 0; i < a.reports.size(); ++i) {
    const StepReport &x = a.reports[i], &y = b.reports[i];
    const std::string step = fmt::format("{} step {}", what, i + 1);
    EXPECT_EQ(x.loss, y.loss) << step;
    EXPECT_NEAR(x.aux_loss, y.aux_loss, sum_tolerance * y.aux_loss) << step;
    EXPECT_NEAR(x.z_loss, y.z_loss, sum_tolerance * y.z_loss) << step;
    EXPECT_NEAR(x.grad_norm, y.grad_norm, sum_tolerance * y.grad_norm) << step;
    expect_same_bits(a.gradients[i], b.gradients[i], step + ": gradient of");
  }
  expect_same_bits(a.state, b.state, what + ":");
  expect_same_bits(a.weights_in_use, b.weights_in_use, what + ": weight in use");
  EXPECT_EQ(a.replica_differences, b.replica_differences) << what;
}

}  // namespace orthant::test
