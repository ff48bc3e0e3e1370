// The template beside an axis whose gradient sums run on a stream of their own: it scales all of a gradient, once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace orthant::run_test::template_test {
namespace {

// Gradient norms of some steps on two ranks; those after the first see weights that earlier gradients changed. A scale
// that meets a sum half-way shows only where the ranks are not in step, so the model is not too small, and the steps
// are several.
std::vector<double> grad_norms(const ProgramFolder& folder, const std::string& name, const std::string& config) {
  folder.write("c.toml", config);
  const Result run =
      folder.orthant(with_set({"launch", "c.toml"}, {"run.steps=6", "model.d_model=96", "run.name=\"" + name + "\""}));
  EXPECT_EQ(run.code, 0) << run.error;
  std::vector<double> norms;
  for (const std::string& line : lines_of(folder.run(name) / "metrics.jsonl")) {
    norms.push_back(nlohmann::json::parse(line).at("grad_norm").get<double>());
  }
  return norms;
}

TEST(Template, ScalesTheSumBeforeOrAfterTheAxisThatSums) {
  const ProgramFolder folder;
  const std::string base = tiny_config({2, 2});
  const std::string table = "[plugins.template]\nfactor = 3.0\n";
  const std::size_t plugins = base.find("[plugins.data]");
  ASSERT_NE(plugins, std::string::npos);
  const std::string first = base.substr(0, plugins) + table + base.substr(plugins);

  const std::vector<double> plain = grad_norms(folder, "plain", base);
  const std::vector<double> after = grad_norms(folder, "after", base + table);
  const std::vector<double> before = grad_norms(folder, "before", first);
  ASSERT_EQ(plain.size(), 6u);
  ASSERT_EQ(after.size(), 6u);
  ASSERT_EQ(before.size(), 6u);
  EXPECT_NEAR(after[0], 3 * plain[0], 1e-5 * plain[0]);
  EXPECT_NEAR(before[0], 3 * plain[0], 1e-5 * plain[0]);
  for (std::size_t i = 1; i < before.size(); ++i) {
    EXPECT_NEAR(after[i], before[i], 1e-3 * before[i]);
  }
}

}  // namespace
}  // namespace orthant::run_test::template_test
