// Pairs of answers: two documents a sequence, of which the answers behind the prompt count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include "core/data/source.h"
#include "plugins/tokenizer/chat/conversation.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"

namespace orthant::pairs_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Tokens of bytes, and what counts of them: '_' where nothing does.
std::string told(const SequenceDocument& document) {
  std::string text, labels;
  for (std::size_t t = 0; t < document.token.size(); ++t) {
    text += static_cast<char>(document.token[t]);
    labels += document.label[t] < 0 ? '_' : static_cast<char>(document.label[t]);
  }
  return text + "|" + labels;
}

class Pairs : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("own.toml", "[user]\nbefore = \"?\"\nafter = \"=\"\n[assistant]\nend = \".\"\n");
    settings_.data.source = "pairs";
    settings_.data.chat_template = (folder_.path() / "own.toml").string();
    settings_.data.documents = Documents::packed;
    settings_.data.sequence_length = 32;
    settings_.data.validation_fraction = 0;
    settings_.run.directory = (folder_.path() / "runs").string();
  }
  std::unique_ptr<Sequences> open(const std::string& lines) {
    folder_.write("pairs.jsonl", lines);
    settings_.data.path = {(folder_.path() / "pairs.jsonl").string()};
    return settings_.catalogue->get<Source>("pairs").open(settings_);
  }
  std::vector<std::string> first(const std::string& lines) {
    std::vector<std::string> documents;
    for (const SequenceDocument& document : open(lines)->training(0)) {
      documents.push_back(told(document));
    }
    return documents;
  }
  std::string refusal(const std::string& lines) {
    return test::error_of<ConfigError>([&] { open(lines); });
  }

  TemporaryFolder folder_;
  Settings settings_;
};

TEST_F(Pairs, OfTexts) {
  EXPECT_THAT(first(R"({"prompt": "ab", "chosen": "12", "rejected": "x", "score": 3})"),
              ElementsAre("?ab=12|___12.", "?ab=x|___x."));
}

// Answers within the prompt do not count; all of those behind it do.
TEST_F(Pairs, OfMessages) {
  const std::string prompt = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "0"},
                                {"role": "user", "content": "b"})";
  std::string line = R"({"prompt": [)" + prompt + R"(], "chosen": [{"role": "assistant", "content": "1"}],
      "rejected": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "c"},
                   {"role": "assistant", "content": "y"}]})";
  std::erase(line, '\n');
  EXPECT_THAT(first(line), ElementsAre("?a=0.?b=1|_______1.", "?a=0.?b=x.?c=y|_______x.___y."));
}

TEST_F(Pairs, ThePromptIsWhatBothBeginWith) {
  const std::string begin = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "0"}, )";
  std::string line = R"({"chosen": [)" + begin +
                     R"({"role": "user", "content": "b"}, {"role": "assistant", "content": "1"}],
                         "rejected": [)" +
                     begin + R"({"role": "user", "content": "b"}, {"role": "assistant", "content": "2"}]})";
  std::erase(line, '\n');
  EXPECT_THAT(first(line), ElementsAre("?a=0.?b=1|_______1.", "?a=0.?b=2|_______2."));
}

TEST_F(Pairs, AreCutAtTheirEndsTheLongerAnswerFirst) {
  settings_.data.sequence_length = 12;
  const std::string line = R"({"prompt": "a", "chosen": "123456789", "rejected": "xy"})";
  EXPECT_THAT(first(line), ElementsAre("?a=1234|__12345", "?a=xy|__xy."));
  EXPECT_THAT(open(line)->notes(), ElementsAre(HasSubstr("1 of 1 pairs are longer")));
  settings_.data.sequence_length = 9;
  EXPECT_THAT(first(line), ElementsAre("?a=1|__12", "?a=x|__xy")) << "half of the room each";
  EXPECT_THAT(first(R"({"prompt": "a", "chosen": "123456789", "rejected": "xyxyxyxyx"})"),
              ElementsAre("?a=1|__12", "?a=x|__xy"));
  settings_.data.too_long = TooLong::refuse;
  EXPECT_THAT(refusal(line), AllOf(HasSubstr("pairs.jsonl', line 1"), HasSubstr("data.sequence_length is 9")));
}

TEST_F(Pairs, WithoutAnAnswerLeftAreRefusedByLine) {
  settings_.data.sequence_length = 10;
  const std::string good = R"({"prompt": "a", "chosen": "1", "rejected": "x"})"
                           "\n";
  EXPECT_THAT(refusal(good + "\n" + R"({"prompt": "abcdefghi", "chosen": "1", "rejected": "x"})"),
              AllOf(HasSubstr("pairs.jsonl', line 3"), HasSubstr("no token of the chosen answer is left")));
}

TEST_F(Pairs, WhatIsNoPairIsRefusedByLine) {
  const std::string good = R"({"prompt": "a", "chosen": "1", "rejected": "x"})"
                           "\n";
  EXPECT_THAT(refusal(good + R"({"prompt": "a", "chosen": "1"})"),
              AllOf(HasSubstr("line 2"), HasSubstr("\"rejected\"")));
  EXPECT_THAT(refusal(good + R"({"prompt": 3, "chosen": "1", "rejected": "x"})"),
              HasSubstr("under \"prompt\", found number"));
  EXPECT_THAT(refusal(good + R"({"chosen": "1", "rejected": "x"})"), HasSubstr("expected a prompt"));
  EXPECT_THAT(refusal(good + R"({"prompt": "a", "chosen": [{"role": "user", "content": "1"}], "rejected": "x"})"),
              HasSubstr("expected an answer of the assistant under \"chosen\""));
  EXPECT_THAT(refusal(good + R"({"chosen": [], "rejected": []})"), HasSubstr("under \"chosen\""));
  EXPECT_THAT(refusal(good + "{"), HasSubstr("line 2"));
}

// The last pairs are held out, and measured evenly spread.
TEST_F(Pairs, HeldOutOnesAreTheLast) {
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    lines += fmt::format("{{\"prompt\": \"a\", \"chosen\": \"{}\", \"rejected\": \"x\"}}\n", i);
  }
  settings_.data.validation_fraction = 0.4;
  settings_.data.validation_sequences = 2;
  const auto source = open(lines);
  EXPECT_EQ(source->training_sequences(), 6);
  ASSERT_EQ(source->validation_sequences(), 2);
  EXPECT_EQ(told(source->training(5)[0]), "?a=5|__5.");
  EXPECT_EQ(told(source->validation(0)[0]), "?a=6|__6.");
  EXPECT_EQ(told(source->validation(1)[0]), "?a=8|__8.");
  settings_.data.validation_fraction = 1;
  EXPECT_EQ(open(lines)->training_sequences(), 0);
}

}  // namespace
}  // namespace orthant::pairs_test
