// Suggestions, and how a problem is shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/config/diagnostics.h"
#include "core/config/suggest.h"

namespace orthant::diagnostics_test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(EditDistance, CountsPublishedExamples) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("saturday", "sunday"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
  EXPECT_EQ(edit_distance("ca", "ac"), 1);   // a swap is one edit
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // optimal string alignment; unrestricted Damerau-Levenshtein gives 2
}

TEST(Nearest, IsWhatWasProbablyMeant) {
  EXPECT_EQ(nearest("setps", {"seed", "steps"}), "steps");
  EXPECT_EQ(nearest("lerning_rate", {"learning", "learning_rate"}), "learning_rate");
  EXPECT_EQ(nearest("zzz", {"steps", "seed"}), std::nullopt);
  EXPECT_EQ(nearest("ls", {"lr"}), "lr");
  EXPECT_EQ(nearest("x", {}), std::nullopt);
  EXPECT_EQ(nearest(std::string(1 << 20, 'a'), {"steps"}), std::nullopt);
}

class Shown : public testing::Test {
 protected:
  // The three or four lines of one problem in a text of one line.
  std::string show(const std::string& text, int column, int length) {
    auto sources = std::make_shared<Sources>();
    const int file = sources->add("a.toml", text);
    const std::string origin = sources->origin({file, 1, column, length});
    Diagnostics diagnostics(sources);
    diagnostics.add(origin, "wrong", "write it right");
    return diagnostics.render();
  }
};

TEST_F(Shown, CaretStandsBelowTheText) {
  EXPECT_EQ(show("key = 12\n", 7, 2), "a.toml:1:7: wrong\n    | key = 12\n    |       ^^\n    = write it right\n");
}

TEST_F(Shown, TabsAndMultiByteCharactersKeepTheCaretBelow) {
  EXPECT_EQ(show("\té = 5\r\n", 6, 1), "a.toml:1:6: wrong\n    | \té = 5\n    | \t    ^\n    = write it right\n");
}

TEST_F(Shown, LengthIsCutAtTheEndOfTheLine) {
  EXPECT_THAT(show("abc\n", 2, 1000), HasSubstr("    |  ^^\n"));
  EXPECT_THAT(show("abc\n", 4, 5), HasSubstr("    |    ^\n"));       // just past the end
  EXPECT_THAT(show("abc\n", 9, 5), HasSubstr("    |         ^\n"));  // a place that is not there
}

TEST_F(Shown, NothingOfTheFileControlsTheTerminal) {
  const std::string text = show("a\x1b[31m\x7f\xff\xc3 = 1\n", 1, 1);
  EXPECT_THAT(text, HasSubstr("    | a?[31m??? = 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(Shown, LongLinesAreCutAroundTheCaret) {
  const std::string text = show(std::string(5000, 'x') + "HERE" + std::string(5000, 'y'), 5001, 4);
  EXPECT_THAT(text, HasSubstr("xHEREy"));
  EXPECT_LT(text.size(), 400u);
}

TEST(Diagnostics, AreSortedByPlaceAndKeptOnce) {
  auto sources = std::make_shared<Sources>();
  const int first = sources->add("z.toml", "one\ntwo\nthree\n");
  const int second = sources->add("a.toml", "four\n");
  EXPECT_EQ(sources->add("z.toml", "again"), first);
  const std::string line3 = sources->origin({first, 3, 1, 1});
  const std::string line2 = sources->origin({first, 2, 1, 1});
  const std::string other = sources->origin({second, 1, 1, 1});
  Diagnostics diagnostics(sources);
  diagnostics.add("default", "nowhere");
  diagnostics.add(other, "other file");
  diagnostics.add(line3, "third");
  diagnostics.add(line2, "second");
  diagnostics.add(line3, "third");
  EXPECT_EQ(diagnostics.size(), 4u);
  const std::string text = diagnostics.render();
  EXPECT_LT(text.find("second"), text.find("third"));
  EXPECT_LT(text.find("third"), text.find("other file"));
  EXPECT_LT(text.find("other file"), text.find("z.toml: nowhere"));
}

TEST(Diagnostics, ALongListIsCut) {
  auto sources = std::make_shared<Sources>();
  sources->add("a.toml", "");
  Diagnostics diagnostics(sources);
  for (int i = 0; i < 75; ++i) {
    diagnostics.add("default", "problem " + std::to_string(i));
  }
  EXPECT_THAT(diagnostics.render(), HasSubstr("and 25 more\n"));
}

}  // namespace
}  // namespace orthant::diagnostics_test
