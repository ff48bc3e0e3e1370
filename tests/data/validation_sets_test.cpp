// Validation sets: each is what a run would hold out whose held-out part is the set's file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/data/prepare.h"
#include "core/data/source.h"
#include "core/data/token_file.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::validation_sets_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string text_of(std::size_t size, std::uint32_t seed) {
  std::string text;
  for (std::uint32_t i = seed; text.size() < size; i = i * 1664525u + 1013904223u) {
    text += fmt::format("{} ", i >> 16);
    if (i % 7 == 0) {
      text += "\n\n\n";
    }
  }
  text.resize(size);
  return text;
}

// A source of a plugin that knows nothing of sets: a file of digits, of which each is a sequence of that many tokens.
class Digits final : public Sequences {
 public:
  Digits(std::string text, bool endless, double held_out) : text_(std::move(text)), endless_(endless) {
    EXPECT_GE(held_out, 0);
    EXPECT_LT(held_out, 1) << "a source that is as it was is never asked to hold all out";
  }
  std::string name() const override { return "digits"; }
  std::int64_t vocabulary() const override { return 10; }
  std::optional<std::int64_t> training_sequences() const override {
    return endless_ ? std::nullopt : std::optional<std::int64_t>(text_.size());
  }
  Sequence training(std::int64_t i) const override {
    const int digit = text_.at(static_cast<std::size_t>(i)) - '0';
    return {{.token = std::vector<std::int32_t>(static_cast<std::size_t>(digit), digit)}};
  }
  std::int64_t validation_sequences() const override { return 0; }
  Sequence validation(std::int64_t) const override { return {}; }

 private:
  std::string text_;
  bool endless_;
};

class DigitSource final : public Source {
 public:
  DigitSource(bool endless, bool reads) : endless_(endless), reads_(reads) {}
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    const std::string text = read_file(settings.data.path.at(0));
    return text == "nothing" ? nullptr : std::make_unique<Digits>(text, endless_, settings.data.validation_fraction);
  }
  bool reads_files() const override { return reads_; }

 private:
  bool endless_, reads_;
};

class ValidationSetsTest : public testing::Test {
 protected:
  Settings settings() const {
    Settings s;
    s.run.directory = (folder_.path() / "runs").string();
    s.data.path = {train_};
    s.data.sequence_length = 16;
    s.data.validation_fraction = 0;
    s.data.validation_sequences = 5;
    s.batch.sequences = 4;
    return s;
  }
  // With one file as its set.
  Settings with_set(Settings s, const std::string& file) const {
    s.data.validation_path = {file};
    return s;
  }
  // The same sequences, held out of a text that ends with the file.
  void expect_as_held_out(Settings s, const std::string& train, const std::string& file) {
    const auto sets = make_batch_source(with_set(s, file));
    s.data.path = {train, file};
    const auto size = [](const std::string& path) { return static_cast<double>(std::filesystem::file_size(path)); };
    s.data.validation_fraction = size(file) / (size(train) + size(file));
    const auto held_out = make_batch_source(s);
    ASSERT_EQ(sets->sets().size(), 1u);
    const HeldOut& set = *sets->sets()[0].sequences;
    ASSERT_EQ(set.validation_sequences(), held_out->validation_sequences());
    ASSERT_GT(set.validation_sequences(), 1);
    const HostBatch got = set.validation(0, set.validation_sequences());
    const HostBatch want = held_out->validation(0, set.validation_sequences());
    EXPECT_EQ(got.token, want.token);
    EXPECT_EQ(got.label, want.label);
    EXPECT_EQ(got.position, want.position);
    EXPECT_EQ(got.first, want.first);
    EXPECT_EQ(got.valid, want.valid);
    EXPECT_EQ(sets->validation_sequences(), 0);
    const HostBatch last = set.validation(set.validation_sequences() - 1, 1);
    EXPECT_TRUE(std::equal(last.token.begin(), last.token.end(), want.token.end() - 16));
    EXPECT_THROW(set.validation(set.validation_sequences(), 1), Error);
  }
  std::string tokenizer() const {
    const auto wheels = nlohmann::json::parse(read_file(paths::source("tests/tokenizer/wheels.json")));
    return folder_.write("tokenizer.json", wheels["kinds"]["gpt2"]["tokenizer"].dump());
  }
  // A token file of the text, by bytes or by another tokenizer.
  std::string tokens_of(const std::string& text, const std::string& by) {
    const std::string output = (folder_.path() / (by == "bytes" ? text + ".tok" : "other.tok")).string();
    if (by == "bytes") {
      prepare_byte_tokens({text}, "\n\n\n", output);
    } else {
      prepare_tokens({.files = {text}, .text = {}, .tokenizer = load_tokenizer(tokenizer()), .output = output});
    }
    return output;
  }
  std::string refusal(const Settings& s) {
    const std::string opened = test::error_of<SettingError>([&] { make_batch_source(s); });
    EXPECT_EQ(test::error_of<SettingError>([&] { check_batch_source(s, false); }), opened);
    try {
      make_batch_source(s);
    } catch (const SettingError& error) {
      EXPECT_EQ(error.setting(), "data.validation_path");
      EXPECT_EQ(error.element(), s.data.validation_path.size() - 1);
    }
    return opened;
  }
  Settings digits(bool endless, bool reads, const std::string& set) const {
    auto catalogue = built_in_catalogue();
    catalogue->add<Source>("digits", "Digits.", std::make_shared<DigitSource>(endless, reads));
    Settings s = with_set(settings(), folder_.write("set", set));
    s.data.source = "digits";
    s.data.path = {folder_.write("digits", "1234567")};
    s.catalogue = catalogue;
    return s;
  }

  TemporaryFolder folder_;
  std::string train_ = folder_.write("train.txt", text_of(3000, 1));
  std::string wiki_ = folder_.write("wiki.txt", text_of(1000, 2));
};

TEST_F(ValidationSetsTest, AStreamIsWhatARunWouldHoldOut) {
  expect_as_held_out(settings(), train_, wiki_);
  Settings all = settings();
  all.data.validation_sequences = 1000;  // the last window is padded
  expect_as_held_out(all, train_, wiki_);
}

TEST_F(ValidationSetsTest, DocumentsAreWhatARunWouldHoldOut) {
  for (const Documents documents : {Documents::packed, Documents::separate}) {
    Settings s = settings();
    s.data.documents = documents;
    expect_as_held_out(s, train_, wiki_);
  }
}

TEST_F(ValidationSetsTest, EveryByteButTheFirstIsPredictedOnce) {
  Settings s = with_set(settings(), wiki_);
  s.data.validation_sequences = 1000;
  const auto source = make_batch_source(s);
  const HeldOut& set = *source->sets().at(0).sequences;
  const HostBatch batch = set.validation(0, set.validation_sequences());
  std::string predicted;
  for (const std::int32_t label : batch.label) {
    predicted += label >= 0 ? std::string(1, static_cast<char>(label)) : "";
  }
  EXPECT_EQ(predicted, read_file(wiki_).substr(1));
}

TEST_F(ValidationSetsTest, StandBesideAHeldOutPartAndABlend) {
  Settings s = settings();
  s.data.path = {train_, folder_.write("more.txt", text_of(2000, 3))};
  s.data.blend = {0.5, 0.5};
  s.data.validation_fraction = 0.2;
  const HostBatch held_out = make_batch_source(s)->validation(0, 4), trained = make_batch_source(s)->train(3, 0, 4);
  s.data.validation_path = {wiki_, folder_.write("code.txt", text_of(100, 4))};
  const auto source = make_batch_source(s);
  EXPECT_EQ(source->validation(0, 4).token, held_out.token);
  EXPECT_EQ(source->train(3, 0, 4).token, trained.token);
  const std::vector<NamedSet> sets = source->sets();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "wiki");
  EXPECT_EQ(sets[1].name, "code");
  s.data.validation_names = {"one", "two"};
  EXPECT_EQ(make_batch_source(s)->sets()[1].name, "two");
}

TEST_F(ValidationSetsTest, AFileThatIsTrainedOnIsToldOf) {
  EXPECT_THAT(check_batch_source(with_set(settings(), wiki_), false), IsEmpty());
  const Settings s = with_set(settings(), (folder_.path() / "." / "train.txt").string());
  EXPECT_THAT(check_batch_source(s, false),
              ElementsAre(HasSubstr("set 'train' is a file of data.path: it is trained on")));
}

TEST_F(ValidationSetsTest, WhatCannotBeMeasuredIsRefusedByNameAndElement) {
  Settings two = settings();
  two.data.validation_path = {wiki_, (folder_.path() / "none.txt").string()};
  EXPECT_THAT(refusal(two), AllOf(HasSubstr("[data] validation_path: set 'none': "), HasSubstr("none.txt")));
  EXPECT_THAT(refusal(with_set(settings(), folder_.write("a", ""))),
              HasSubstr("[data] validation_path: set 'a': the text file"));
  EXPECT_THAT(refusal(with_set(settings(), folder_.write("b", "sixteen bytes..."))),
              AllOf(HasSubstr("has 16 tokens, a sequence of 16 needs 17"), testing::Not(HasSubstr("data.path"))));
  Settings packed = settings();
  packed.data.documents = Documents::packed;
  EXPECT_THAT(refusal(with_set(packed, folder_.write("c", "a\n\n\nb"))), HasSubstr("no document of two tokens"));
  Settings damaged = settings();
  damaged.data.source = "tokens";
  damaged.data.path = {tokens_of(train_, "bytes")};
  EXPECT_THAT(refusal(with_set(damaged, wiki_)), HasSubstr("wiki.txt"));
}

TEST_F(ValidationSetsTest, TokensOfAnotherTokenizerAreRefused) {
  Settings s = settings();
  s.data.source = "tokens";
  s.data.path = {tokens_of(train_, "bytes")};
  s.model.vocab_size = 1000;
  const std::string same = tokens_of(wiki_, "bytes"), other = tokens_of(wiki_, "other");
  EXPECT_EQ(make_batch_source(with_set(s, same))->sets().size(), 1u);
  s.data.path = {same};
  s.data.validation_fraction = 0.5;  // the other half of the same tokens
  s.data.validation_sequences = 1000;
  const auto half = make_batch_source(s), whole = make_batch_source(with_set(s, same));
  const HeldOut& set = *whole->sets().at(0).sequences;
  EXPECT_GT(set.validation_sequences(), half->validation_sequences());
  EXPECT_EQ(whole->validation(0, 3).token, half->validation(0, 3).token);
  s.data.path = {tokens_of(train_, "bytes")};
  EXPECT_THAT(refusal(with_set(s, other)), AllOf(HasSubstr("set 'other'"), HasSubstr("the same ids mean other texts")));
}

TEST_F(ValidationSetsTest, TextIsReadByTheTokenizerOfTheData) {
  Settings s = with_set(settings(), wiki_);
  s.data.tokenizer = tokenizer();
  s.data.validation_sequences = 1000;
  const auto by = load_tokenizer(s.data.tokenizer);
  s.model.vocab_size = by->vocabulary();
  EXPECT_THAT(check_batch_source(s, false), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(s.run.directory)) << "to look writes nothing";
  const auto source = make_batch_source(s);
  const HeldOut& set = *source->sets().at(0).sequences;
  const HostBatch batch = set.validation(0, set.validation_sequences());
  std::vector<std::int32_t> predicted;
  std::copy_if(batch.label.begin(), batch.label.end(), std::back_inserter(predicted), [](auto l) { return l >= 0; });
  const std::vector<std::int32_t> ids = by->encode(read_file(wiki_));
  EXPECT_EQ(predicted, std::vector<std::int32_t>(ids.begin() + 1, ids.end()));
}

TEST_F(ValidationSetsTest, ConversationsAreMeasuredByTheirAnswers) {
  Settings s = settings();
  s.data.source = "chat";
  s.data.documents = Documents::packed;
  s.data.chat_template = "plain";
  s.data.sequence_length = 64;
  s.data.path = {folder_.write("chat.jsonl", "{\"prompt\": \"Hi\", \"completion\": \"Yo\"}\n")};
  const std::string set = folder_.write("held.jsonl", "{\"prompt\": \"What?\", \"completion\": \"That.\"}\n");
  Settings with = with_set(s, set);
  EXPECT_THAT(check_batch_source(with, false), IsEmpty());  // no file is written to look
  const HostBatch batch = make_batch_source(with)->sets().at(0).sequences->validation(0, 1);
  std::string learnt;
  for (const std::int32_t label : batch.label) {
    learnt += label >= 0 ? std::string(1, static_cast<char>(label)) : "";
  }
  EXPECT_EQ(learnt, " That.\n\n");
  const std::string silent =
      folder_.write("silent.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}]}\n");
  EXPECT_THAT(test::error_of<SettingError>([&] { make_batch_source(with_set(s, silent)); }),
              AllOf(HasSubstr("set 'silent'"), HasSubstr("has an answer")));
  s.data.too_long = TooLong::refuse;
  const std::string wordy = folder_.write(
      "wordy.jsonl", fmt::format("{{\"prompt\": \"?\", \"completion\": \"{}\"}}\n", std::string(200, 'x')));
  EXPECT_THAT(test::error_of<SettingError>([&] { make_batch_source(with_set(s, wordy)); }),
              AllOf(HasSubstr("set 'wordy'"), HasSubstr("line 1")));
}

// Seven sequences, five of them measured: those at 0, 7/5, ... of the file.
TEST_F(ValidationSetsTest, ASourceThatKnowsNothingOfSetsServesThem) {
  const Settings s = digits(false, true, "3456789");
  const auto source = make_batch_source(s);
  const HeldOut& set = *source->sets().at(0).sequences;
  ASSERT_EQ(set.validation_sequences(), 5);
  const HostBatch batch = set.validation(0, 5);
  std::vector<std::int32_t> first;
  for (std::size_t row = 0; row < 5; ++row) {
    first.push_back(batch.token[row * 16]);
  }
  EXPECT_THAT(first, ElementsAre(3, 4, 5, 7, 8));
  EXPECT_EQ(make_batch_source(digits(false, true, "34"))->sets().at(0).sequences->validation_sequences(), 2);
}

TEST_F(ValidationSetsTest, ASourceThatCannotServeThemIsRefused) {
  EXPECT_THAT(refusal(digits(false, true, "111")), HasSubstr("digits has no token to measure"));
  EXPECT_THAT(refusal(digits(false, true, "")), HasSubstr("digits has no sequence"));
  EXPECT_THAT(refusal(digits(true, true, "345")), HasSubstr("does not say how many sequences a file has"));
  EXPECT_THAT(test::error_of<SettingError>([&] { make_batch_source(digits(false, true, "nothing")); }),
              HasSubstr("source 'digits' opens nothing"));
  EXPECT_THAT(test::error_of<SettingError>([&] { make_batch_source(digits(false, false, "345")); }),
              HasSubstr("source \"digits\" reads no files, so it has no validation sets"));
  Settings synthetic = with_set(settings(), wiki_);
  synthetic.data.source = "synthetic";
  EXPECT_THAT(test::error_of<SettingError>([&] { check_batch_source(synthetic, false); }),
              HasSubstr("source \"synthetic\" reads no files"));
}

}  // namespace
}  // namespace orthant::validation_sets_test
