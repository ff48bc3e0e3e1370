// Heads that tell classes apart: what source "labelled" gives, the mean over a text, and every figure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "tests/encoder/texts.h"
#include "tests/support/parity.h"

namespace orthant::test::encoder_classes_test {
namespace {

using testing::HasSubstr;

// A text is of class 1 where it has an 'x'; tokens are of class 2 where they are vowels.
std::string rows(int count, bool of_tokens) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::string word;
    for (int letter = 0; letter < 3 + i % 6; ++letter) {
      word += static_cast<char>('a' + (i * 5 + letter * 7) % 26);
    }
    std::string labels;
    for (const char letter : word) {
      labels += fmt::format("{}{}", labels.empty() ? "" : ",",
                            std::string("aeiou").find(letter) == std::string::npos ? "0" : "2");
    }
    const int label = word.find('x') == std::string::npos ? 0 : 1;
    text += of_tokens ? fmt::format("{{\"text\": \"{}\", \"labels\": [{}]}}\n", word, labels)
                      : fmt::format("{{\"text\": \"{}\", \"label\": {}}}\n", word, label);
  }
  return text;
}

Overrides classifier(bool of_tokens = false) {
  const std::string path = file_of(of_tokens ? "tokens.jsonl" : "texts.jsonl", rows(120, of_tokens));
  return joined(modern_encoder(), {R"(data.source="labelled")", "data.path=\"" + path + "\"",
                                   "run.directory=\"" + path + ".runs\"", "model.classes=4"});
}

TEST(Labelled, TextsHaveTheirClass) {
  const auto source = make_batch_source(experiment(classifier(), plugin_encoder).settings);
  const HostBatch batch = source->train(0, 0, 8);
  for (std::size_t row = 0; row < 8; ++row) {
    const std::size_t begin = row * 12;
    EXPECT_EQ(batch.token[begin], 257);
    bool has_x = false;
    std::size_t i = begin + 1;
    for (; batch.token[i] != 258; ++i) {
      has_x = has_x || batch.token[i] == 'x';
      EXPECT_EQ(batch.label[i], -1);
    }
    EXPECT_EQ(batch.label[begin], has_x ? 1 : 0);
    EXPECT_TRUE(i + 1 == begin + 12 || batch.valid[i + 1] == 0);
  }
  EXPECT_EQ(source->validation_sequences(), 4);
}

TEST(Labelled, TokensHaveTheirs) {
  const auto source = make_batch_source(experiment(classifier(true), plugin_encoder).settings);
  const HostBatch batch = source->train(0, 0, 8);
  for (std::size_t i = 0; i < batch.token.size(); ++i) {
    const bool vowel = std::string("aeiou").find(static_cast<char>(batch.token[i] & 127)) != std::string::npos;
    const bool letter = batch.token[i] < 256 && batch.valid[i] != 0;
    EXPECT_EQ(batch.label[i], !letter ? -1 : vowel ? 2 : 0) << i;
  }
}

TEST(Labelled, RefusesRowsByTheirLine) {
  const auto refused = [](const std::string& row) {
    const std::string path = file_of("bad.jsonl", "{\"text\": \"good one\", \"label\": 0}\n" + row + "\n");
    try {
      make_batch_source(experiment(joined(classifier(), {"data.path=\"" + path + "\"", "data.validation_fraction=0.0"}),
                                   plugin_encoder)
                            .settings);
      return std::string("(opened)");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refused(R"({"text": "abc", "label": 4})"), HasSubstr("bad.jsonl:2: 4 is no class"));
  EXPECT_THAT(refused(R"({"text": "abc", "label": "cat"})"), HasSubstr("bad.jsonl:2: \"cat\" is no class"));
  EXPECT_THAT(refused(R"({"text": "abc"})"), HasSubstr("bad.jsonl:2: expected one of \"label\""));
  EXPECT_THAT(refused(R"({"text": "a", "label": 1})"), HasSubstr("2 rows, and 1 texts of two tokens"));
}

struct Cell {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
  bool of_tokens = false;
};
void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.name;
}
const Overrides mean = {R"(model.pooling="mean")"};
const Cell cells[] = {
    {"cls_data", axis_table("data", 2)},
    {"cls_tensor", axis_table("tensor", 2, "sequence_parallel = true\n")},
    {"tokens_tensor", axis_table("tensor", 4), {"moe.experts=0"}, true},
    {"tokens_pipeline", axis_table("pipeline", 2), {}, true},
    {"mean_data", axis_table("data", 2), mean},
    {"mean_tensor", axis_table("tensor", 2), mean},
    {"mean_sequence_parallel", axis_table("tensor", 2, "sequence_parallel = true\n"), mean},
    {"mean_ulysses", axis_table("sequence", 2), mean},
    {"mean_tensor_ulysses", axis_table("tensor", 2) + axis_table("sequence", 2), mean},
    {"mean_ring", axis_table("sequence", 2, "method = \"ring\"\n"), mean},
    {"mean_zero3_expert", axis_table("data", 2, "zero = 3\nwhole_below = 0\n") + axis_table("expert", 2), mean},
    {"mean_windows", axis_table("pipeline", 2) + axis_table("tensor", 2),
     joined(mean, {"model.sliding_window=3", "model.full_attention_every=2"})},
};
class Classes : public testing::TestWithParam<Cell> {};

TEST_P(Classes, EqualOneRank) {
  const VerifyReport report = verify(
      experiment(joined(classifier(GetParam().of_tokens), GetParam().overrides), GetParam().plugins + plugin_encoder),
      2);
  EXPECT_TRUE(report.ok()) << differences(report);
}
INSTANTIATE_TEST_SUITE_P(Layouts, Classes, testing::ValuesIn(cells), [](const auto& cell) { return cell.param.name; });

// With the mean, the order of what the first token sees must not matter to a model without positions; with the text's
// tokens equal, the mean is the token's own.
TEST(Pooling, TheMeanOfEqualTokensIsTheToken) {
  const auto loss = [](const char* pooling) {
    const std::string path =
        file_of("equal.jsonl", "{\"text\": \"aaaaaa\", \"label\": 1}\n{\"text\": \"bbbb\", \"label\": 0}\n");
    OneRank rank(
        experiment(joined(classifier(), {"data.path=\"" + path + "\"", "data.validation_fraction=0.0", "moe.experts=0",
                                         "data.frame=false", fmt::format("model.pooling=\"{}\"", pooling)}),
                   plugin_encoder));
    return rank->trainer().step(0).loss;
  };
  EXPECT_NEAR(loss("mean"), loss("cls"), 1e-6);
}

// Two classes that a letter tells: learned, and said so.
TEST(Classes, AreLearnedAndCounted) {
  OneRank rank(experiment(joined(classifier(true), {"moe.experts=0", "optimizer.lr=0.02"}), plugin_encoder));
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    const StepReport report = rank->trainer().step(step);
    (step == 0 ? first : last) = report.figures.at("class_accuracy");
  }
  EXPECT_LT(first, 0.9);
  EXPECT_GT(last, 0.97);
}

}  // namespace
}  // namespace orthant::test::encoder_classes_test
