// What an encoder-decoder is given: pairs of the sources, and that nothing depends on what is padding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "core/data/source.h"
#include "tests/config/temporary_folder.h"
#include "tests/support/parity.h"

namespace orthant::test::encoder_decoder_pairs_test {
namespace {

const std::string plugin = "[plugins.encoder_decoder]\n";
const Overrides base = {R"(model.kind="t5")",        R"(data.source="rewriting")", "data.sequence_length=8",
                        "model.source_length=12",    "model.encoder_layers=2",     "model.vocab_size=128",
                        R"(model.activation="relu")"};

std::string text_of(const std::vector<std::int32_t>& tokens, std::size_t begin, std::size_t end) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Words end with '.', also in the source; the target is asked for from what stands before.
TEST(Rewriting, PairsAreTheRule) {
  const Config config = experiment(base, plugin);
  const HostBatch batch = make_batch_source(config.settings)->train(3, 0, 8);
  ASSERT_EQ(batch.spaces.size(), 1u);
  const HostBatch& source = batch.spaces.front();
  EXPECT_EQ(batch.positions, 8);
  EXPECT_EQ(source.positions, 12);
  for (std::size_t s = 0; s < 8; ++s) {
    std::size_t length = 0;
    while (source.token[s * 12 + length] != '.') {
      ++length;
    }
    std::string word = text_of(source.token, s * 12, s * 12 + length);
    std::reverse(word.begin(), word.end());
    for (char& letter : word) {
      letter = std::string("aeiou").find(letter) == std::string::npos ? letter : static_cast<char>(letter - 'a' + 'A');
    }
    EXPECT_EQ(text_of(batch.label, s * 8, s * 8 + length + 1), word + ".");
    EXPECT_EQ(batch.token[s * 8], 0);
    for (std::size_t i = 1; i <= length; ++i) {
      EXPECT_EQ(batch.token[s * 8 + i], batch.label[s * 8 + i - 1]);  // shifted by one
    }
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(source.valid[s * 12 + i], i <= length ? 1 : 0);
      EXPECT_EQ(source.label[s * 12 + i], -1);
    }
  }
}

// With every sentinel replaced by what the target has behind it, the source is the text again.
TEST(Spans, SourceAndTargetAreTheText) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text += static_cast<char>('a' + (i * 7 + i / 26) % 26);
  }
  std::ofstream(folder.path("text.txt")) << text;
  const Config config =
      experiment(joined(base, {R"(data.source="spans")", "data.sequence_length=16", "model.source_length=60",
                               "data.sentinels=20", "model.vocab_size=276", "data.validation_fraction=0.1",
                               "data.path=\"" + folder.path("text.txt") + "\""}),
                 plugin);
  const auto source = make_batch_source(config.settings);
  const HostBatch batch = source->train(0, 0, 8), again = source->train(0, 0, 8);
  EXPECT_EQ(batch.spaces.front().token, again.spaces.front().token);
  std::int64_t left_out = 0, all = 0;
  std::set<std::string> shapes;
  for (std::size_t s = 0; s < 8; ++s) {
    std::map<std::int32_t, std::string> told;
    std::int32_t sentinel = -1, expected = 275;
    for (std::size_t i = 0; i < 16 && batch.label[s * 16 + i] >= 0; ++i) {
      const std::int32_t label = batch.label[s * 16 + i];
      EXPECT_EQ(batch.token[s * 16 + i], i == 0 ? 0 : batch.label[s * 16 + i - 1]);
      if (label >= 256) {
        EXPECT_EQ(label, expected--);  // the last id first
        sentinel = label;
      } else {
        told[sentinel] += static_cast<char>(label);
        ++left_out;
      }
    }
    std::string whole, shape;
    for (std::size_t i = 0; i < 60 && batch.spaces[0].valid[s * 60 + i] != 0; ++i) {
      const std::int32_t token = batch.spaces[0].token[s * 60 + i];
      whole += token >= 256 ? told.at(token) : std::string(1, static_cast<char>(token));
      shape += token >= 256 ? '|' : '.';
    }
    shapes.insert(shape);
    all += static_cast<std::int64_t>(whole.size());
    EXPECT_NE(text.find(whole), std::string::npos) << whole;
    EXPECT_GE(whole.size(), 55u);
  }
  EXPECT_NEAR(static_cast<double>(left_out) / static_cast<double>(all), 0.15, 0.02);
  EXPECT_GT(shapes.size(), 6u);  // by chance
}

// The same words in longer rows: what is padding in the source is seen by nobody, in the encoder or from the decoder.
TEST(Padding, OfTheSourceIsSeenByNobody) {
  const auto losses = [](const std::string& length) {
    OneRank rank(experiment(joined(base, {"moe.experts=0", length}), plugin));
    std::vector<double> found;
    for (int step = 0; step < 3; ++step) {
      found.push_back(rank->trainer().step(step).loss);
    }
    return found;
  };
  const std::vector<double> narrow = losses("model.source_length=8"), wide = losses("model.source_length=21");
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    EXPECT_NEAR(narrow[i], wide[i], 1e-6 * narrow[i]);
  }
}

// Groups, capacity and counts are those of each stack's own tokens.
TEST(Experts, OfEachStackRouteItsTokens) {
  const Config config = experiment(
      joined(base, {"moe.capacity_factor=1.0", "moe.top_k=1", R"(moe.router="switch")", "model.source_length=32"}),
      plugin);
  OneRank rank(config);
  const StepReport report = rank->trainer().step(0);
  const HostBatch batch = make_batch_source(config.settings)->train(0, 0, 8);
  const auto valid = [](const HostBatch& of) { return std::count(of.valid.begin(), of.valid.end(), 1); };
  ASSERT_EQ(report.layers.size(), 4u);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const LayerCounters& counters = report.layers[layer];
    const HostBatch& tokens = layer < 2 ? batch.spaces.front() : batch;
    EXPECT_EQ(counters.tokens, valid(tokens)) << layer;
    EXPECT_EQ(counters.choices, valid(tokens)) << layer;
    // A sequence of the space is a group: an expert of four has a quarter of its tokens as seats, rounded up.
    std::int64_t seats = 0;
    for (std::int64_t q = 0; q < tokens.sequences; ++q) {
      const auto begin = tokens.valid.begin() + q * tokens.positions;
      seats += (std::count(begin, begin + tokens.positions, 1) + 3) / 4;
    }
    EXPECT_LE(*std::max_element(counters.kept.begin(), counters.kept.end()), seats) << layer;
    EXPECT_GT(counters.dropped_by_capacity, 0) << layer;
  }
}

}  // namespace
}  // namespace orthant::test::encoder_decoder_pairs_test
