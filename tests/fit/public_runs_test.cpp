// DeepMind's public losses of routed models give the coefficients that Clark et al. (2022) publish.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <sstream>

#include "bench/fit/routed_law.h"
#include "tests/support/paths.h"

namespace orthant::public_runs_test {
namespace {

struct Published {
  std::string router;
  std::array<double, 4> coefficients;  // a, b, c, d
};

class PublicRuns : public testing::TestWithParam<Published> {};

// Each router's models, with the dense ones as its models of one expert.
std::vector<FinalLoss> losses_of(const std::string& router) {
  std::ifstream file(paths::source("tests/fit/routed_scaling.csv"));
  std::vector<FinalLoss> runs;
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "router,size,dense_parameters,experts,step,validation_loss");
  while (std::getline(file, line)) {
    std::stringstream fields(line);
    std::array<std::string, 6> field;
    for (std::string& text : field) {
      std::getline(fields, text, ',');
    }
    if (field[0] == router || field[0] == "Dense") {
      runs.push_back({field[1], std::stod(field[2]), std::stod(field[3]), runs.size(), std::stod(field[5])});
    }
  }
  return runs;
}

TEST_P(PublicRuns, ThePublishedCoefficientsLieInside) {
  const RoutedLawFit fit = fit_routed_law(losses_of(GetParam().router), {});
  EXPECT_GE(fit.runs, 56u);
  EXPECT_LT(fit.residual_rms, 0.008);
  for (std::size_t k = 0; k < 4; ++k) {
    const double published = GetParam().coefficients[k];
    EXPECT_TRUE(fit.intervals[k].contains(published)) << RoutedLaw::names[k] << ": " << published << " against "
                                                      << *fit.intervals[k].low << " .. " << *fit.intervals[k].high;
    // An interval worth having: neither another sign nor twice the size lies inside.
    EXPECT_FALSE(fit.intervals[k].contains(0)) << RoutedLaw::names[k];
    EXPECT_FALSE(fit.intervals[k].contains(2 * published)) << RoutedLaw::names[k];
  }
  EXPECT_EQ(fit.left_out.size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Routers, PublicRuns,
                         testing::Values(Published{"S-Base", {-0.082, -0.108, 0.009, 1.104}},
                                         Published{"RL-R", {-0.083, -0.126, 0.012, 1.111}},
                                         Published{"Hash", {-0.087, -0.136, 0.012, 1.157}}),
                         [](const auto& routers) { return routers.param.router.substr(0, 1); });

}  // namespace
}  // namespace orthant::public_runs_test
