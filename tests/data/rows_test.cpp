// Rows of chat and preference files: each key in them is honoured, refused by line, or counted.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include "core/data/chat_sources.h"
#include "core/data/data_size.h"
#include "core/data/source.h"
#include "core/data/text_file.h"
#include "plugins/tokenizer/chat/conversation.h"
#include "plugins/tokenizer/chat/row_keys.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"

namespace orthant::rows_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// "user:q assistant:[a]": what is learnt stands in brackets; '|' stands before what is no longer given.
std::string told(const Conversation& conversation, std::size_t given = 0) {
  const char* const names[] = {"system", "user", "assistant"};
  std::string text;
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    const ChatMessage& m = conversation[i];
    text += fmt::format("{}{}{}:{}", i == 0 ? "" : " ", i == given && given > 0 ? "|" : "",
                        names[static_cast<int>(m.role)], m.learnt() ? "[" + m.text + "]" : m.text);
  }
  return text;
}

std::string told_row(const std::string& row) {
  return told(read_conversation(row));
}

std::string told_pair(const std::string& row) {
  const AnswerPair pair = read_pair(row);
  return told(pair.chosen, pair.given) + " / " + told(pair.rejected, pair.given);
}

std::string refusal(const std::string& row) {
  return test::error_of<ConfigError>([&] { read_conversation(row); });
}

std::string refusal_of_pair(const std::string& row) {
  return test::error_of<ConfigError>([&] { read_pair(row); });
}

std::string messages(const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": "q"}, )" + answer + "]}";
}

TEST(Rows, OfEveryFormThatTheFieldHas) {
  for (const char* row : {R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
                          R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})",
                          R"({"messages": [{"from": "user", "value": "q"}, {"from": "model", "value": "a"}]})",
                          R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]},
                              {"role": "assistant", "content": [{"type": "text", "text": ""},
                                                                {"type": "text", "text": "a"}]}]})",
                          R"({"prompt": "q", "completion": "a"})",
                          R"({"prompt": [{"role": "user", "content": "q"}],
                              "completion": [{"role": "assistant", "content": "a"}]})",
                          R"({"prompt": "q", "completion": {"role": "assistant", "content": "a"}})",
                          R"({"instruction": "q", "input": null, "output": "a"})",
                          R"({"instruction": "q", "input": "", "output": "a", "system": null, "history": []})"}) {
    EXPECT_EQ(told_row(row), "user:q assistant:[a]") << row;
  }
}

TEST(Rows, SystemAndHistoryStandBeforeTheQuestion) {
  EXPECT_EQ(told_row(R"({"instruction": "q", "input": "x", "output": "a", "system": "s", "history": [["h", "b"]]})"),
            "system:s user:h assistant:[b] user:q\n\nx assistant:[a]");
  EXPECT_EQ(told_row(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
                         "system": "s"})"),
            "system:s user:q assistant:[a]");
  EXPECT_THAT(refusal(R"({"messages": [{"role": "system", "content": "t"}, {"role": "user", "content": "q"}],
                          "system": "s"})"),
              HasSubstr("two texts"));
  EXPECT_THAT(refusal(R"({"instruction": "q", "output": "a", "history": [["h"]]})"), HasSubstr("\"history\""));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "q"}], "history": [["h", "b"]]})"),
              HasSubstr("\"history\""));
}

// Answers within a prompt are given, as TRL's completion_only_loss has it.
TEST(Rows, AnswersOfAPromptAreNotLearnt) {
  EXPECT_EQ(told_row(R"({"prompt": [{"role": "user", "content": "h"}, {"role": "assistant", "content": "b"},
                                    {"role": "user", "content": "q"}], "completion": "a"})"),
            "user:h assistant:b user:q assistant:[a]");
}

TEST(Rows, WeightAndTrainSayWhatIsLearnt) {
  for (const char* key : {R"("weight": 0)", R"("weight": 0.0)", R"("train": false)", R"("training": false)"}) {
    EXPECT_EQ(told_row(messages(fmt::format(R"({{"role": "assistant", "content": "a", {}}})", key))),
              "user:q assistant:a")
        << key;
  }
  for (const char* key : {R"("weight": 1)", R"("train": true)", R"("weight": null)", R"("train": null)"}) {
    EXPECT_EQ(told_row(messages(fmt::format(R"({{"role": "assistant", "content": "a", {}}})", key))),
              "user:q assistant:[a]")
        << key;
  }
  EXPECT_EQ(told_row(messages(R"({"role": "user", "content": "r", "train": true})")), "user:q user:[r]");
  EXPECT_EQ(told_row(R"({"prompt": "q", "completion": "a", "train": false})"), "user:q assistant:a");
  EXPECT_THAT(refusal(messages(R"({"role": "assistant", "content": "a", "weight": 0.5})")),
              AllOf(HasSubstr("message 2"), HasSubstr("0.5"), HasSubstr("write 0 or 1")));
  EXPECT_THAT(refusal(messages(R"({"role": "user", "content": "a", "weight": 1})")), HasSubstr("no answer"));
  EXPECT_THAT(refusal(messages(R"({"role": "assistant", "content": "a", "weight": 1, "train": false})")),
              HasSubstr("disagree"));
  EXPECT_THAT(refusal(messages(R"({"role": "assistant", "content": "a", "train": "yes"})")),
              HasSubstr("write true or false"));
}

TEST(Rows, WhatNothingHereWritesIsRefused) {
  for (const char* key :
       {R"("tool_calls": [{"id": 1}])", R"("function_call": {"name": "f"})", R"("reasoning_content": "hm")",
        R"("thinking": "hm")", R"("refusal": "no")", R"("audio": {"id": "x"})", R"("loss_mask": [1])"}) {
    EXPECT_THAT(refusal(messages(fmt::format(R"({{"role": "assistant", "content": "", {}}})", key))),
                AllOf(HasSubstr("message 2"), HasSubstr(std::string(key).substr(0, std::string(key).find(':')))))
        << key;
  }
  for (const char* key :
       {R"("tools": [{"name": "f"}])", R"("functions": [{}, {}])",
        R"("chat_template_kwargs": {"enable_thinking": true})", R"("images": ["a.png"])", R"("sample_weight": 0.5)"}) {
    EXPECT_THAT(refusal(fmt::format(R"({{"prompt": "q", "completion": "a", {}}})", key)),
                HasSubstr(std::string(key).substr(0, std::string(key).find(':'))))
        << key;
  }
  EXPECT_EQ(told_row(R"({"prompt": "q", "completion": "a", "tools": [], "images": null, "chat_template_kwargs": {}})"),
            "user:q assistant:[a]");
  EXPECT_EQ(told_row(messages(R"({"role": "assistant", "content": "a", "tool_calls": null, "refusal": null})")),
            "user:q assistant:[a]");
  EXPECT_THAT(refusal(messages(R"({"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]})")),
              AllOf(HasSubstr("message 2"), HasSubstr("image_url")));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a", "label": false})"), HasSubstr("\"label\""));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), HasSubstr("\"pairs\""));
}

// TRL's rule, written down once more: a prompt that is a text beside lists of messages is left for what both begin
// with; a list is what it is.
// What is made of a row is many times its size.
TEST(Rows, ALineOfManyMillionsOfTokensIsRefused) {
  const std::string row = R"({"prompt": "q", "completion": ")" + std::string(33 << 20, 'a') + "\"}";
  EXPECT_THAT(refusal(row), HasSubstr("a conversation may have 33554432: is an end of a line missing?"));
  EXPECT_THAT(refusal_of_pair(row), HasSubstr("a conversation may have 33554432"));
}

TEST(Rows, ThePromptOfAPairIsWhatBothBeginWith) {
  const std::string q = R"({"role": "user", "content": "q"})", x = R"({"role": "assistant", "content": "x"})",
                    y = R"({"role": "assistant", "content": "y"})", s = R"({"role": "system", "content": "s"})",
                    r = R"({"role": "user", "content": "r"})";
  const auto list = [](const std::vector<std::string>& all) { return fmt::format("[{}]", fmt::join(all, ", ")); };
  const auto row = [](const std::string& prompt, const std::string& chosen, const std::string& rejected) {
    return fmt::format(R"({{{}"chosen": {}, "rejected": {}}})",
                       prompt.empty() ? "" : fmt::format(R"("prompt": {}, )", prompt), chosen, rejected);
  };
  const std::string once = "user:q |assistant:[x] / user:q |assistant:[y]";
  for (const std::string& prompt : {std::string(), std::string("\"q\""), std::string("\" q\\n\""), list({q}),
                                    std::string("null"), std::string("\"\"")}) {
    EXPECT_EQ(told_pair(row(prompt, list({q, x}), list({q, y}))), once) << prompt;
  }
  EXPECT_EQ(told_pair(row("\"q\"", list({x}), list({y}))), once);
  EXPECT_EQ(told_pair(row(list({q}), list({x}), list({y}))), once);
  EXPECT_EQ(told_pair(row("\"q\"", x, y)), once);
  EXPECT_EQ(told_pair(row("\"q\"", list({q, x}), "\"y\"")), once);
  EXPECT_EQ(told_pair(row("\"q\"", "\"x\"", "\"y\"")), once);
  // Several turns: the prompt names the first or the last question.
  const std::string turns = "user:q assistant:[x] user:r |assistant:[x] / user:q assistant:[x] user:r |assistant:[y]";
  for (const char* prompt : {"\"q\"", "\"r\"", ""}) {
    EXPECT_EQ(told_pair(row(prompt, list({q, x, r, x}), list({q, x, r, y}))), turns) << prompt;
  }
  EXPECT_EQ(told_pair(row("\"q\"", list({s, q, x}), list({s, q, y}))),
            "system:s user:q |assistant:[x] / system:s user:q |assistant:[y]");
  EXPECT_EQ(told_pair(row(list({s}), list({q, x}), list({q, y}))),
            "system:s user:q |assistant:[x] / system:s user:q |assistant:[y]");
  // Other questions behind another answer are not the prompt's.
  EXPECT_EQ(told_pair(row("\"q\"", list({q, x}), list({q, y, r, x}))),
            "user:q |assistant:[x] / user:q |assistant:[y] user:r assistant:[x]");
  for (const std::string& prompt : {std::string("\"p\""), list({r})}) {
    EXPECT_THAT(refusal_of_pair(row(prompt, list({q, x}), list({q, y}))), HasSubstr("both begin with")) << prompt;
  }
  EXPECT_THAT(refusal_of_pair(row("\"q\"", list({q, x}), list({r, y}))), HasSubstr("both begin with"));
  EXPECT_THAT(refusal_of_pair(row("", list({q}), list({q}))), HasSubstr("expected an answer"));
}

TEST(Rows, PairsOfOtherForms) {
  EXPECT_EQ(told_pair(R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "x"},
                          "rejected": {"from": "gpt", "value": "y"}, "system": "s"})"),
            "system:s user:q |assistant:[x] / system:s user:q |assistant:[y]");
  EXPECT_EQ(told_pair(R"({"instruction": "q", "input": "", "chosen": "x", "rejected": "y"})"),
            "user:q |assistant:[x] / user:q |assistant:[y]");
  EXPECT_THAT(refusal_of_pair(R"({"prompt": "q", "chosen": "x", "rejected": "y", "tools": [{}, {}]})"),
              HasSubstr("\"tools\""));
}

class RowFiles : public testing::Test {
 protected:
  Settings settings(const std::string& file, const char* source = "chat") {
    Settings s;
    s.run.directory = (folder_.path() / "runs").string();
    s.data.source = source;
    s.data.path = {file};
    s.data.chat_template = "plain";
    s.data.documents = Documents::separate;
    s.data.sequence_length = 32;
    s.data.validation_fraction = 0;
    s.batch.sequences = 2;
    return s;
  }
  TemporaryFolder folder_;
  const std::string short_row_ = R"({"prompt": "Hi", "completion": "Yo", "id": 3, "source": "a"})";
  const std::string long_row_ = R"({"prompt": "Hi there, how are you today?", "completion": "Yo", "id": 4})";
};

TEST_F(RowFiles, OtherKeysAreCountedOnce) {
  const std::string file =
      folder_.write("a.jsonl", short_row_ + "\n" + short_row_ + "\n" +
                                   messages(R"({"role": "assistant", "content": "a", "name": "x"})"));
  const std::vector<std::string> notes = notes_of_rows(settings(file));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], AllOf(HasSubstr("a.jsonl"), HasSubstr("\"id\" (2), \"source\" (2)"),
                              HasSubstr("in messages \"name\" (1)")));
  EXPECT_THAT(notes_of_row_keys({folder_.write("b.jsonl", R"({"prompt": "q", "completion": "a", "tools": []})")},
                                RowKind::conversation),
              IsEmpty());
  EXPECT_THAT(
      notes_of_row_keys({folder_.write("c.jsonl", R"({"messages": [], "prompt": "q"})")}, RowKind::conversation),
      ElementsAre(HasSubstr("\"prompt\" (1)")));
}

TEST_F(RowFiles, AnArrayIsRowsToo) {
  const std::string rows =
      "\xef\xbb\xbf [\n  " + short_row_ + ",\n  {\n \"prompt\": \"[,]\\\"\",\n\"completion\": \"}\"}\n]\n";
  const TextFile file(folder_.write("a.json", rows), {.whole_lines = true});
  ASSERT_EQ(file.documents().size(), 2u);
  std::string decoded;
  EXPECT_EQ(file.text(file.documents()[0], decoded), short_row_);
  EXPECT_EQ(told_row(std::string(file.text(file.documents()[1], decoded))), "user:[,]\" assistant:[}]");
  EXPECT_THAT(file.place(file.documents()[1]), HasSubstr("line 3"));
  for (const auto& [bad, why] : {std::pair("[{\"prompt\": \"a\"", "has no end"), std::pair("[1, ]", "an element"),
                                 std::pair("[1] 2", "something follows"), std::pair("[1]\n[2]", "something follows")}) {
    EXPECT_THAT(test::error_of<ConfigError>([&] { TextFile(folder_.write("b.json", bad), {.whole_lines = true}); }),
                HasSubstr(why))
        << bad;
  }
  EXPECT_EQ(TextFile(folder_.write("c.json", "[]"), {.whole_lines = true}).documents().size(), 0u);
}

TEST_F(RowFiles, LongRowsAreLeftOut) {
  Settings s = settings(folder_.write("a.jsonl", long_row_ + "\n" + short_row_ + "\n" + long_row_ + "\n"));
  s.data.too_long = TooLong::leave_out;
  EXPECT_THAT(check_batch_source(s, true), testing::Contains(HasSubstr("2 of 3 conversations are longer")));
  EXPECT_EQ(data_size(s, true)->size->sequences, 1);
  EXPECT_EQ(data_size(s, true)->size->tokens, 25);
  s.data.path = {folder_.write("b.jsonl", long_row_)};
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }), HasSubstr("all 1 conversations"));
  Settings pairs =
      settings(folder_.write("p.jsonl", R"({"prompt": "a", "chosen": "1", "rejected": "2"})"
                                        "\n"
                                        R"({"prompt": "a", "chosen": "very much longer", "rejected": "2"})"),
               "pairs");
  pairs.data.sequence_length = 50;
  pairs.data.too_long = TooLong::leave_out;
  EXPECT_EQ(data_size(pairs, true)->size->sequences, 1);
}

TEST(Epochs, AreStepsThatReadTheDataSoOften) {
  BatchSettings plain;
  plain.sequences = 4;
  EXPECT_EQ(steps_of_epochs(plain, 1, 8), 2);
  EXPECT_EQ(steps_of_epochs(plain, 1, 9), 3);
  EXPECT_EQ(steps_of_epochs(plain, 2, 9), 5);
  EXPECT_EQ(steps_of_epochs(plain, 0.5, 9), 2);
  EXPECT_EQ(steps_of_epochs(plain, 0.1, 40), 1);
  EXPECT_EQ(steps_of_epochs(plain, 1e-9, 1), 1);
  const BatchSettings growing{.sequences = 2, .grow_after = {3, 5}, .grow_to = {4, 8}};
  for (std::int64_t sequences = 1; sequences < 60; ++sequences) {
    const std::int64_t steps = steps_of_epochs(growing, 1, sequences);
    EXPECT_GE(sequences_before(growing, steps), sequences);
    EXPECT_LT(sequences_before(growing, steps - 1), sequences);
  }
  EXPECT_THAT(test::error_of<ConfigError>([&] { steps_of_epochs(plain, 1e12, 1 << 30); }), HasSubstr("run"));
}

// A stream's windows lie anywhere: as many as have its tokens read it once.
TEST_F(RowFiles, TheSizeOfEverySource) {
  Settings s = settings(folder_.write("a.txt", std::string(100, 'a')), "text");
  s.data.documents = Documents::stream;
  s.data.sequence_length = 8;
  s.data.validation_fraction = 0.1;
  const DataSize size = *data_size(s, true)->size;
  EXPECT_EQ(size.sequences, 11);
  EXPECT_EQ(size.tokens, 90);
  s.run.steps = 11;
  EXPECT_EQ(size_text(size, s),
            "data: 11 sequences of 8 to train on, 90 tokens; 11 steps read 22 at random places, 2 epochs");
  s.data.source = "synthetic";
  EXPECT_FALSE(data_size(s, true)->size.has_value());
}

TEST_F(RowFiles, WhatIsNoTextIsRefusedByItsFirstBytes) {
  using namespace std::string_literals;
  for (const auto& [name, bytes, what, advice] :
       {std::tuple("a.jsonl.gz", "\x1f\x8b\x08 x"s, "gzip", "zcat"),
        std::tuple("a.jsonl.zst", "\x28\xb5\x2f\xfd x"s, "zstd", "zstd -d"),
        std::tuple("a.txt.xz", "\xfd"s + "7zXZ\0\0"s, "xz", "xzcat"),
        std::tuple("a.txt.bz2", "BZh91AY&SYx"s, "bzip2", "bzcat"), std::tuple("a.zip", "PK\x03\x04"s, "zip", "unzip"),
        std::tuple("a.parquet", "PAR1 x"s, "Parquet", "read_parquet"),
        std::tuple("a.txt", "\xff\xfe"s + "h\0i\0"s, "UTF-16", "iconv -f UTF-16"),
        std::tuple("b.txt", "h\0e\0l\0l\0o\0"s, "UTF-16LE", "iconv -f UTF-16LE"),
        std::tuple("c.txt", "\0h\0e\0l\0l\0o"s, "UTF-16BE", "iconv -f UTF-16BE"),
        std::tuple("d.txt", "h\0\0\0e\0\0\0l\0\0\0l\0\0\0"s, "UTF-32LE", "iconv -f UTF-32LE")}) {
    const std::string file = folder_.write(name, bytes);
    Settings text = settings(file, "text");
    text.data.documents = Documents::stream;
    text.data.sequence_length = 2;
    EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(text, true); }),
                AllOf(HasSubstr(what), HasSubstr(advice), HasSubstr(name)))
        << name;
    EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(settings(file), true); }), HasSubstr(what))
        << name;
    EXPECT_THAT(test::error_of<ConfigError>([&] { TextFile(file, {}); }), HasSubstr(what)) << name;
  }
}

TEST_F(RowFiles, TextsStandUnderAKey) {
  const std::string file =
      folder_.write("a.jsonl", "{\"content\": \"abcdef\"}\n{\"text\": \"ghijk\", \"content\": \"no\"}\n");
  Settings s = settings(file, "text");
  s.data.sequence_length = 4;
  EXPECT_THAT(check_batch_source(s, true), testing::Contains(HasSubstr("braces and keys too")));
  s.data.text_key = "content";
  EXPECT_EQ(data_size(s, true)->size->tokens, 6 + 2);
  s.data.text_key = "body";
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }),
              AllOf(HasSubstr("line 1"), HasSubstr("\"body\""), HasSubstr("data.text_key")));
  const TextFile by_itself(file, {});
  std::string decoded;
  EXPECT_EQ(by_itself.text(by_itself.documents()[0], decoded), "abcdef");
  EXPECT_EQ(by_itself.text(by_itself.documents()[1], decoded), "ghijk");
}

}  // namespace
}  // namespace orthant::rows_test
