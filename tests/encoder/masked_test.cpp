// Source "masked" against the rule written out once more, its statistics, and that masks depend on nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "tests/encoder/texts.h"

namespace orthant::test::encoder_masked_test {
namespace {

constexpr std::int64_t positions = 12;

// Philox4x32-10 as Salmon et al. (2011) print it: two multipliers, two constants of Weyl sequences.
std::array<std::uint32_t, 4> philox_of(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

// What becomes of a token, by its number in the run: seed 1, purpose 5 (the order of data), site "M@" or "MA".
struct Drawn {
  double label, what, other;
};
Drawn drawn(std::uint64_t number, bool held_out) {
  const std::uint32_t purpose = 5, site = held_out ? 0x4D41 : 0x4D40;
  const auto words =
      philox_of({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), 0, purpose},
                {1 ^ (purpose * 0x9E3779B9u), site});
  return {words[0] * 0x1p-32, words[1] * 0x1p-32, words[2] * 0x1p-32};
}

struct Rule {
  double rate = 0.15, masked = 0.8, random = 0.1;
  bool whole_words = false;
};

// A sequence of bytes as the source should give it, from the text behind it: the label where there is one, else the
// token itself.
void expect_masked(const HostBatch& batch, std::int64_t row, std::uint64_t sequence, bool held_out, const Rule& rule) {
  const std::size_t begin = static_cast<std::size_t>(row * positions);
  std::vector<std::int32_t> text;
  std::size_t length = 0;
  while (length < positions && batch.valid[begin + length] != 0) {
    const std::int32_t label = batch.label[begin + length];
    text.push_back(label >= 0 ? label : batch.token[begin + length]);
    ++length;
  }
  ASSERT_GE(length, 3u);
  EXPECT_EQ(text.front(), 257);
  EXPECT_EQ(text.back(), 258);
  EXPECT_EQ(batch.label[begin], -1);
  EXPECT_EQ(batch.label[begin + length - 1], -1);
  bool chosen = false;
  for (std::size_t i = 1; i + 1 < length; ++i) {
    const Drawn d = drawn(sequence * positions + i, held_out);
    const auto is_word = [](std::int32_t byte) { return byte >= 128 || std::isalnum(byte) != 0; };
    if (!rule.whole_words || i == 1 || !is_word(text[i]) || !is_word(text[i - 1])) {
      chosen = d.label < rule.rate;
    }
    const std::int32_t expected = !chosen                              ? text[i]
                                  : d.what < rule.masked               ? 256
                                  : d.what < rule.masked + rule.random ? static_cast<std::int32_t>(d.other * 256)
                                                                       : text[i];
    EXPECT_EQ(batch.label[begin + i], chosen ? text[i] : -1) << i;
    EXPECT_EQ(batch.token[begin + i], expected) << i;
  }
}

Config config_of(const Overrides& more = {}) {
  return experiment(joined(modern_encoder(), joined({"data.mask_rate=0.15"}, more)), plugin_encoder);
}

TEST(Masked, IsTheRule) {
  for (const bool whole : {false, true}) {
    const Config config = config_of({whole ? "data.whole_words=true" : "data.whole_words=false", "data.mask_rate=0.4",
                                     "data.masked_share=0.5", "data.random_share=0.25"});
    const Rule rule{.rate = 0.4, .masked = 0.5, .random = 0.25, .whole_words = whole};
    const auto source = make_batch_source(config.settings);
    for (std::int64_t step = 0; step < 20; ++step) {
      const HostBatch batch = source->train(step, 0, 8);
      for (std::int64_t row = 0; row < 8; ++row) {
        expect_masked(batch, row, static_cast<std::uint64_t>(step * 8 + row), false, rule);
      }
    }
    const HostBatch held_out = source->validation(0, source->validation_sequences());
    for (std::int64_t row = 0; row < held_out.sequences; ++row) {
      expect_masked(held_out, row, static_cast<std::uint64_t>(row), true, rule);
    }
  }
}

// 15 % of the tokens, of which 80 % are hidden, 10 % are others and 10 % stay; a random one may be the token itself.
TEST(Masked, HasTheShares) {
  const auto source = make_batch_source(config_of().settings);
  double tokens = 0, labels = 0, hidden = 0, same = 0;
  std::map<std::int32_t, int> others;
  for (std::int64_t step = 0; step < 1500; ++step) {
    const HostBatch batch = source->train(step, 0, 8);
    for (std::size_t i = 0; i < batch.token.size(); ++i) {
      tokens += batch.token[i] == 257 || batch.token[i] == 258 ? 0 : 1;
      if (batch.label[i] < 0) {
        continue;
      }
      ++labels;
      hidden += batch.token[i] == 256 ? 1 : 0;
      same += batch.token[i] == batch.label[i] ? 1 : 0;
      if (batch.token[i] != 256 && batch.token[i] != batch.label[i]) {
        ++others[batch.token[i] / 64];
      }
    }
  }
  const auto near = [](double share, double of, double expected) {  // within 4 standard deviations
    EXPECT_NEAR(share / of, expected, 4 * std::sqrt(expected * (1 - expected) / of));
  };
  near(labels, tokens, 0.15);
  near(hidden, labels, 0.8);
  near(same, labels, 0.1 + 0.1 / 256);
  ASSERT_EQ(others.size(), 4u);  // any id of texts
  for (const auto& [quarter, count] : others) {
    near(count, labels * 0.1, 0.25);
  }
}

// Parts of a batch, another batch size, a later start and another number of micro-batches see the same masks.
TEST(Masked, DependsOnTheTokenAlone) {
  const Config config = config_of();
  const auto source = make_batch_source(config.settings), again = make_batch_source(config.settings);
  const HostBatch whole = source->train(5, 0, 8), part = again->train(5, 3, 2);
  for (std::size_t i = 0; i < part.token.size(); ++i) {
    EXPECT_EQ(part.token[i], whole.token[3 * positions + i]);
    EXPECT_EQ(part.label[i], whole.label[3 * positions + i]);
  }
  const auto other_seed = make_batch_source(config_of({"run.seed=2"}).settings)->train(5, 0, 8);
  EXPECT_NE(other_seed.label, whole.label);
}

// Each text once an epoch, in another order and with other masks.
TEST(Masked, EpochsHaveMasksOfTheirOwn) {
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    lines += fmt::format("text{:02}.\n", i);
  }
  const Config config =
      config_of({"data.path=\"" + file_of("lines.txt", lines) + "\"", R"(data.documents="separate")",
                 R"(data.separator="\n")", "data.validation_fraction=0.0", "data.mask_rate=0.5",
                 "data.masked_share=0.0", "data.random_share=0.0"});  // the tokens stay: the text is seen
  const auto source = make_batch_source(config.settings);
  std::vector<std::map<std::string, std::string>> epochs(2);  // the text -> its labels
  std::vector<std::vector<std::string>> orders(2);
  for (std::int64_t step = 0; step < 6; ++step) {
    const HostBatch batch = source->train(step, 0, 8);
    for (std::size_t row = 0; row < 8; ++row) {
      std::string text, labels;
      for (std::size_t i = row * positions + 1; i < (row + 1) * positions && batch.token[i] < 256; ++i) {
        text += static_cast<char>(batch.token[i]);
        labels += batch.label[i] < 0 ? '.' : 'x';
      }
      epochs[static_cast<std::size_t>(step / 3)][text] = labels;
      orders[static_cast<std::size_t>(step / 3)].push_back(text);
    }
  }
  EXPECT_EQ(epochs[0].size(), 24u);
  EXPECT_EQ(epochs[1].size(), 24u);
  EXPECT_NE(orders[0], orders[1]);
  int other = 0;
  for (const auto& [text, labels] : epochs[0]) {
    other += epochs[1].at(text) != labels ? 1 : 0;
  }
  EXPECT_GT(other, 18);
}

}  // namespace
}  // namespace orthant::test::encoder_masked_test
