// Axes and words: ticks are round numbers within the axis, labels tell them apart, text is what it was.
#include "apps/report/scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "apps/report/markup.h"
#include "apps/report/study_groups.h"

namespace orthant::report_test::scale_test {
namespace {

using namespace orthant::report;

// A multiple of 1, 2, 2.5 or 5 times a power of ten, all with the same step.
void expect_round(const std::vector<double>& ticks) {
  const double step = ticks[1] - ticks[0];
  const double lead = step / std::pow(10, std::floor(std::log10(step) + 1e-9));
  EXPECT_TRUE(std::abs(lead - 1) < 1e-6 || std::abs(lead - 2) < 1e-6 || std::abs(lead - 2.5) < 1e-6 ||
              std::abs(lead - 5) < 1e-6)
      << step;
  for (const double tick : ticks) {
    EXPECT_NEAR(tick / step, std::round(tick / step), 1e-6);
  }
}

TEST(Scale, TicksAreRoundFewAndWithinTheAxis) {
  std::mt19937 engine(1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int trial = 0; trial < 2000; ++trial) {
    const double size = std::pow(10, 12 * uniform(engine)), middle = size * uniform(engine) * 3;
    const double low = middle - size * (0.01 + std::abs(uniform(engine))), high = middle + size;
    const std::vector<double> ticks = nice_ticks(low, high, ScaleKind::linear, 5);
    ASSERT_GE(ticks.size(), 3u) << low << " " << high;
    ASSERT_LE(ticks.size(), 11u) << low << " " << high;
    EXPECT_GE(ticks.front(), low - 1e-6 * size);
    EXPECT_LE(ticks.back(), high + 1e-6 * size);
    expect_round(ticks);
    const std::vector<std::string> labels = tick_labels(ticks, ScaleKind::linear);
    EXPECT_EQ(std::set<std::string>(labels.begin(), labels.end()).size(), ticks.size()) << low << " " << high;
  }
}

TEST(Scale, LogarithmicTicksAreFewWithinTheAxisAndToldApart) {
  std::mt19937 engine(2);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int trial = 0; trial < 2000; ++trial) {
    const double low = std::pow(10, 20 * uniform(engine) - 10),
                 high = low * std::pow(10, 0.01 + 12 * std::pow(uniform(engine), 3));
    const std::vector<double> ticks = nice_ticks(low, high, ScaleKind::logarithmic, 5);
    ASSERT_GE(ticks.size(), 2u) << low << " " << high;
    ASSERT_LE(ticks.size(), 11u) << low << " " << high;
    EXPECT_GE(ticks.front(), low * (1 - 1e-6));
    EXPECT_LE(ticks.back(), high * (1 + 1e-6));
    const std::vector<std::string> labels = tick_labels(ticks, ScaleKind::logarithmic);
    EXPECT_EQ(std::set<std::string>(labels.begin(), labels.end()).size(), ticks.size()) << low << " " << high;
  }
}

// A quarter of a dead expert is no number of experts.
TEST(Scale, NumbersOfThingsHaveWholeTicks) {
  const Scale few({.label = "dead experts", .from_zero = true, .whole = true}, 0, 1, 0, 100, 5);
  EXPECT_EQ(few.ticks(), (std::vector<double>{0, 1}));
  const Scale many({.label = "dead experts", .from_zero = true, .whole = true}, 0, 40, 0, 100, 5);
  EXPECT_GE(many.ticks().size(), 4u);
}

TEST(Scale, LabelsReadAlike) {
  EXPECT_EQ(tick_labels({0, 0.5, 1}, ScaleKind::linear), (std::vector<std::string>{"0.0", "0.5", "1.0"}));
  EXPECT_EQ(tick_labels({0, 5000, 10000}, ScaleKind::linear), (std::vector<std::string>{"0", "5k", "10k"}));
  EXPECT_EQ(tick_labels({1e9, 1e12}, ScaleKind::logarithmic), (std::vector<std::string>{"1G", "1T"}));
  EXPECT_EQ(number_text(0.0123449), "0.01234");
  EXPECT_EQ(number_text(2070000), "2.07M");
  EXPECT_EQ(number_text(9999.9), "10k");
  EXPECT_EQ(number_text(999960), "1M");
  EXPECT_EQ(number_text(-1234), "-1234");
  EXPECT_EQ(number_text(NAN), "not finite");
}

TEST(Scale, PlacesAreLinearOrLogarithmicAndEqualNumbersGetRoom) {
  const Scale linear({}, 2, 4, 100, 0, 5);
  EXPECT_DOUBLE_EQ(linear.at(2), 100);
  EXPECT_DOUBLE_EQ(linear.at(3.5), 25);
  const Scale logarithmic({.label = "", .kind = ScaleKind::logarithmic}, 1, 16, 0, 100, 5);
  EXPECT_NEAR(logarithmic.at(4), 50, 1e-12);
  for (const double value : {0.0, 3.0, -2e9, 1e-300}) {
    const Scale flat({}, value, value, 0, 100, 5);
    EXPECT_NEAR(flat.at(value), 50, 1e-6) << value;
    EXPECT_GE(flat.ticks().size(), 2u) << value;
  }
}

TEST(Markup, TextIsValidAndNothingOfItIsMarkup) {
  EXPECT_EQ(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escaped("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(escaped("\xC3"), bad);                                // cut short
  EXPECT_EQ(escaped("\xC0\x80"), bad + bad);                      // longer than need be
  EXPECT_EQ(escaped("\xED\xA0\x80"), bad + bad + bad);            // half of a pair
  EXPECT_EQ(escaped("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // beyond Unicode
  EXPECT_EQ(escaped(std::string_view("\0\x1b", 2)), bad + bad);
  EXPECT_EQ(escaped("\xEF\xBF\xBF"), bad + bad + bad);  // U+FFFF, which XML does not hold
  EXPECT_EQ(shortened("abcdefghij", 5), "ab\xE2\x80\xA6ij");
  EXPECT_EQ(shortened("\xC3\xA9\xC3\xA9\xC3\xA9", 3), "\xC3\xA9\xC3\xA9\xC3\xA9");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(csv_field("a\"b"), "\"a\"\"b\"");
  EXPECT_EQ(csv_field("-1.5"), "-1.5");
  EXPECT_EQ(percent_encoded("a b,\xC3\xA9"), "a%20b%2C%C3%A9");
}

// Of published tables.
TEST(Interval, QuantilesAreStudents) {
  EXPECT_DOUBLE_EQ(t_quantile(1), 12.706);
  EXPECT_DOUBLE_EQ(t_quantile(4), 2.776);
  EXPECT_DOUBLE_EQ(t_quantile(30), 2.042);
  EXPECT_NEAR(t_quantile(60), 2.000, 0.005);
  EXPECT_NEAR(t_quantile(120), 1.980, 0.005);
}

}  // namespace
}  // namespace orthant::report_test::scale_test
