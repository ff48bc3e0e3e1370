// A model of one's own that sees, out of tree: pictures and captions of the example, what it learns, and every layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/experiment.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::captions_test {
namespace {

using test::experiment;
using test::joined;
using test::Overrides;
using testing::HasSubstr;

const Overrides base = {R"(model.kind="captioner")", R"(data.source="captions")", "data.sequence_length=14"};

std::string captions(const std::string& keys = "") {
  return fmt::format("[plugins.captions]\npath = \"{}\"\n{}", paths::out_of_tree("captions"), keys);
}

// Read from the pixels alone: which channel is lit, where, and how many pixels of the 4 x 4.
TEST(Captions, SayWhatThePictureShows) {
  const auto source = make_batch_source(experiment(base, captions("noise = 0.0\n")).settings);
  for (std::int64_t step = 0; step < 20; ++step) {
    const HostBatch batch = source->train(step, 0, 8);
    ASSERT_EQ(batch.columns, 48);
    for (std::size_t row = 0; row < 8; ++row) {
      const auto is_lit = [&](int y, int x, int c) {
        const auto token = static_cast<std::size_t>(y / 4 * 3 + x / 4);
        const auto at = static_cast<std::size_t>((y % 4 * 4 + x % 4) * 3 + c);
        return batch.value[(row * 14 + token) * 48 + at] > 0.5f;
      };
      int lit = 0, channel = -1, top = 12, left = 12;
      for (int y = 0; y < 12; ++y) {
        for (int x = 0; x < 12; ++x) {
          for (int c = 0; c < 3; ++c) {
            if (is_lit(y, x, c)) {
              ++lit;
              channel = c;
              top = std::min(top, y);
              left = std::min(left, x);
            }
          }
        }
      }
      ASSERT_TRUE(lit == 16 || lit == 12);
      const std::int32_t square = 5, cross = 6, frame = 7;  // a cross has no corners
      const std::int32_t shape = lit == 16 ? square : is_lit(top, left, channel) ? frame : cross;
      const std::vector<std::int32_t> expected = {2 + channel, shape, 8 + top / 3, 11 + left / 3, 1};
      for (std::size_t w = 0; w < 5; ++w) {
        EXPECT_EQ(batch.label[row * 14 + 8 + w], expected[w]);
      }
      for (std::size_t p = 0; p < 8; ++p) {
        EXPECT_EQ(batch.label[row * 14 + p], -1);
      }
      for (std::size_t w = 1; w < 5; ++w) {  // words are given one place later, and have no pixels
        EXPECT_EQ(batch.token[row * 14 + 8 + w], expected[w - 1]);
        const auto begin = batch.value.begin() + static_cast<std::ptrdiff_t>((row * 14 + 8 + w) * 48);
        EXPECT_TRUE(std::all_of(begin, begin + 48, [](float v) { return v == 0; }));
      }
    }
  }
}

double loss_after(int steps, const std::string& keys) {
  const Overrides model = joined(base, {"moe.experts=0", "model.d_model=32", "optimizer.lr=0.01", "batch.sequences=32",
                                        "data.validation_sequences=64"});
  test::OneRank rank(experiment(model, captions(keys)));
  for (int step = 0; step < steps; ++step) {
    rank->trainer().step(step);
  }
  return rank->trainer().validate();
}

// Four words of three kinds each, and the end: ln 81 nats by five labels for one who sees nothing.
TEST(Captioner, LearnsToSee) {
  const double without_eyes = std::log(81.0) / 5;
  EXPECT_LT(loss_after(200, ""), 0.5 * without_eyes);
  EXPECT_GT(loss_after(200, "fault = \"blind\"\n"), 0.95 * without_eyes);
  EXPECT_LT(loss_after(200, "fault = \"blind\"\nnoise = 0.0\n"), 1.1 * without_eyes);  // and learns the words
}

TEST(Captioner, DoesNotReadItsAnswers) {
  EXPECT_LT(loss_after(60, "fault = \"not_shifted\"\n"), 0.1);  // the planted mistake: labels that are the inputs
  EXPECT_GT(loss_after(60, "fault = \"blind\"\n"), 0.5);
}

std::string table(const char* name, int size, const std::string& more = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", name, size, more);
}

TEST(Captioner, EqualsOneRankInEveryLayout) {
  const Overrides dense = {"moe.experts=0"};
  const std::vector<std::pair<std::string, Overrides>> layouts = {
      {table("data", 2, "zero = 3\nwhole_below = 0\n"), {}},
      {table("data", 2) + table("expert", 2), {}},
      {table("tensor", 2, "sequence_parallel = true\n"), dense},
      {table("pipeline", 2), {"batch.micro_batch=4"}},
      {table("sequence", 2), dense},
      {table("sequence", 7, "method = \"ring\"\n"), dense},
      {table("tensor", 2) + table("pipeline", 2) + table("data", 2, "zero = 2\n"), dense},
      {table("data", 2), {R"(memory.recompute="full")"}},
  };
  for (const auto& [plugins, overrides] : layouts) {
    SCOPED_TRACE(plugins);
    const VerifyReport report = verify(experiment(joined(base, overrides), plugins + captions()), 2);
    EXPECT_TRUE(report.ok()) << test::differences(report);
  }
}

TEST(Captioner, ReadsPicturesAlone) {
  EXPECT_THAT(test::refusal(joined(base, {R"(data.source="synthetic")"}), captions()),
              HasSubstr("a model of kind \"captioner\" reads patches and words"));
  const Config narrow = experiment(joined(base, {"data.sequence_length=12"}), captions());
  EXPECT_THAT([&] { make_batch_source(narrow.settings); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("a picture and its caption take 13 positions")));
}

}  // namespace
}  // namespace orthant::captions_test
