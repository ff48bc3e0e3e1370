// Blends: each part has its share of every beginning, and its own sequences in its own order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/data/blend_order.h"
#include "core/data/permutation.h"
#include "core/data/source.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"

namespace orthant::blend_test {
namespace {

using testing::HasSubstr;

// |turns - share * n| < 1 at every n of two periods and a bit, and parts count their own turns.
void expect_fair(const std::vector<std::int64_t>& weights) {
  const BlendOrder order(std::vector<double>(weights.begin(), weights.end()));
  const std::int64_t sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  std::vector<std::int64_t> had(weights.size(), 0);
  for (std::int64_t n = 0; n < 2 * sum + 3; ++n) {
    const BlendOrder::Turn turn = order(n);
    ASSERT_EQ(turn.number, had[turn.part]) << testing::PrintToString(weights) << " turn " << n;
    ++had[turn.part];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      // Whole numbers: |had * sum - weight * (n + 1)| < sum.
      ASSERT_LT(std::abs(had[i] * sum - weights[i] * (n + 1)), sum)
          << testing::PrintToString(weights) << " part " << i << " after " << n + 1;
    }
  }
}

TEST(BlendOrder, EveryBeginningIsFairForAllSmallWeights) {
  for (std::int64_t a = 1; a <= 12; ++a) {
    expect_fair({a});
    for (std::int64_t b = 1; b <= 12; ++b) {
      expect_fair({a, b});
      for (std::int64_t c = 1; c <= 12; ++c) {
        expect_fair({a, b, c});
        for (std::int64_t d = 1; a <= 5 && b <= 5 && c <= 5 && d <= 5; ++d) {
          expect_fair({a, b, c, d});
          expect_fair({a, b, c, d, a + b, 1});
        }
      }
    }
  }
  expect_fair({997, 1, 1, 1, 500, 3, 3, 251});
}

TEST(BlendOrder, SharesAreExactForDecimalsAndRoundedElse) {
  EXPECT_EQ(BlendOrder({0.7, 0.3}).turns(), (std::vector<std::int64_t>{7, 3}));
  EXPECT_EQ(BlendOrder({3e9, 1e9, 2e9}).turns(), (std::vector<std::int64_t>{3, 1, 2}));
  EXPECT_EQ(BlendOrder({0.333333, 0.666667}).period(), 1000000);
  const BlendOrder thirds({1.0 / 3, 2.0 / 3});
  EXPECT_EQ(thirds.period(), 1 << 20);
  EXPECT_NEAR(static_cast<double>(thirds.turns()[0]) / thirds.period(), 1.0 / 3, 0x1p-20);
  const BlendOrder budgets({712345678, 287654321, 1000});
  EXPECT_EQ(budgets.period(), 1 << 20);
  EXPECT_EQ(budgets.turns()[2], 1);
  EXPECT_EQ(BlendOrder({1e308, 1e308}).turns(), (std::vector<std::int64_t>{1 << 19, 1 << 19}));
  EXPECT_THROW(BlendOrder({1, 0}), ConfigError);
  EXPECT_THROW(BlendOrder({1e12, 1.0}), ConfigError);
  EXPECT_THROW(BlendOrder({1, std::nan("")}), ConfigError);
}

class Blend : public testing::Test {
 protected:
  // Files of documents, one to a sequence, of a letter each: "a0......", "a1......".
  Settings settings(const std::vector<std::string>& paths, std::vector<double> blend) {
    Settings s;
    s.data.path = paths;
    s.data.blend = std::move(blend);
    s.data.separator = "--";
    s.data.documents = Documents::separate;
    s.data.sequence_length = 8;
    s.data.validation_fraction = 0;
    s.batch.sequences = 5;
    return s;
  }
  std::string file(char letter, int documents) {
    std::string text;
    for (int i = 0; i < documents; ++i) {
      text += fmt::format("{}{:03}....--", letter, i);
    }
    return folder_.write(std::string(1, letter), text);
  }
  // The first four letters of sequences [0, count).
  static std::vector<std::string> heads(const Settings& s, std::int64_t count) {
    const auto source = make_batch_source(s);
    std::vector<std::string> found;
    for (std::int64_t i = 0; i < count; ++i) {
      const HostBatch b = source->train(i / s.batch.sequences, i % s.batch.sequences, 1);
      found.emplace_back(b.token.begin(), b.token.begin() + 4);
    }
    return found;
  }
  TemporaryFolder folder_;
};

// The naive one: each part's own row, taken from in turn by whoever is furthest behind its window.
TEST_F(Blend, AKthSequenceOfAPartIsItsKthAlone) {
  const std::vector<std::string> paths = {file('a', 11), file('b', 4), file('c', 30)};
  const std::vector<double> weights = {0.5, 0.2, 0.3};
  const std::vector<std::string> blended = heads(settings(paths, weights), 200);
  std::map<char, std::vector<std::string>> of_part;
  for (const std::string& head : blended) {
    of_part[head[0]].push_back(head);
  }
  for (std::size_t p = 0; p < 3; ++p) {
    const char letter = "abc"[p];
    const auto count = static_cast<std::int64_t>(of_part[letter].size());
    EXPECT_NEAR(static_cast<double>(count), 200 * weights[p], 1);
    EXPECT_EQ(of_part[letter], heads(settings({paths[p]}, {}), count)) << letter;
  }
  // A part that has ended begins again, all of it, in another order.
  const std::vector<std::string>& b = of_part['b'];
  EXPECT_EQ((std::set<std::string>(b.begin(), b.begin() + 4)).size(), 4u);
  EXPECT_EQ((std::multiset<std::string>(b.begin(), b.begin() + 4)),
            (std::multiset<std::string>(b.begin() + 4, b.begin() + 8)));
  EXPECT_NE((std::vector<std::string>(b.begin(), b.begin() + 16)),
            (std::vector<std::string>(b.begin() + 16, b.begin() + 32)));
}

TEST_F(Blend, ValidationIsThePartsOwnAndNotesTellEpochs) {
  Settings s = settings({file('a', 40), file('b', 20)}, {3, 1});
  s.data.validation_fraction = 0.25;
  s.data.validation_sequences = 8;
  s.run.steps = 100;
  const auto source = make_batch_source(s);
  ASSERT_EQ(source->validation_sequences(), 8);
  const HostBatch held = source->validation(0, 8);
  std::string letters;
  for (std::size_t row = 0; row < 8; ++row) {
    letters += static_cast<char>(held.token[row * 8]);
    EXPECT_GE(held.token[row * 8 + 2], '1');  // documents 030 to 039, and 015 to 019
  }
  EXPECT_EQ(letters, "aaaaaabb");
  const std::vector<std::string> notes = check_batch_source(s, false);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_THAT(notes[0], HasSubstr("75 % of the sequences, 375 in this run, 12.5 epochs of its 30"));
  EXPECT_THAT(notes[1], HasSubstr("125 in this run, 8.33 epochs of its 15"));
}

TEST_F(Blend, StreamsAreBlendedAndWeightsAreOneAFile) {
  Settings s = settings({folder_.write("a", std::string(400, 'a')), folder_.write("b", std::string(200, 'b'))}, {3, 1});
  s.data.documents = Documents::stream;
  std::string letters;
  for (const std::string& head : heads(s, 20)) {
    EXPECT_EQ(head, std::string(4, head[0]));
    letters += head[0];
  }
  EXPECT_EQ(std::count(letters.begin(), letters.end(), 'a'), 15) << letters;
  EXPECT_EQ(std::count(letters.begin(), letters.end(), 'b'), 5) << letters;
  s.data.blend = {1, 1, 1};
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }), HasSubstr("data.blend"));
}

}  // namespace
}  // namespace orthant::blend_test
