// Sources of pairs against their definitions: a text cut by chance, and pairs of files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "core/data/source.h"
#include "tests/config/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"

namespace orthant::test::encoder_decoder_sources_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string plugin = "[plugins.encoder_decoder]\n";
const Overrides base = {R"(model.kind="t5")", "data.sequence_length=16", "model.source_length=16",
                        R"(model.activation="relu")", "model.vocab_size=260"};

// The tokens of a row up to its padding.
std::vector<std::int32_t> row_of(const HostBatch& batch, const std::vector<std::int32_t>& of, std::int64_t row) {
  std::vector<std::int32_t> found;
  for (std::int64_t i = row * batch.positions; i < (row + 1) * batch.positions; ++i) {
    if (batch.valid[static_cast<std::size_t>(i)] != 0) {
      found.push_back(of[static_cast<std::size_t>(i)]);
    }
  }
  return found;
}
std::string text_of(const std::vector<std::int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

class PairFiles : public testing::Test {
 protected:
  Overrides with(const Overrides& more) const { return joined(base, more); }
  std::string path(const std::string& name) const { return folder_.path(name); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

  const TemporaryFolder folder_;
};

TEST_F(PairFiles, PrefixAndRestAreTheText) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += static_cast<char>('a' + (i * 7 + i / 26) % 26);
  }
  write("text.txt", text);
  const Config config =
      experiment(with({R"(data.source="prefix")", "data.path=\"" + path("text.txt") + "\"", "model.end_token=257",
                       "model.start_token=258", "data.validation_fraction=0.1"}),
                 plugin);
  const auto source = make_batch_source(config.settings);
  const HostBatch batch = source->train(0, 0, 8), again = source->train(0, 0, 8);
  EXPECT_EQ(batch.label, again.label);
  std::set<std::size_t> cuts;
  for (std::int64_t row = 0; row < 8; ++row) {
    std::vector<std::int32_t> told = row_of(batch, batch.label, row);
    std::vector<std::int32_t> prefix = row_of(batch.spaces[0], batch.spaces[0].token, row);
    const std::vector<std::int32_t> given = row_of(batch, batch.token, row);
    ASSERT_EQ(told.back(), 257);
    ASSERT_EQ(prefix.back(), 257);
    EXPECT_EQ(given.front(), 258);
    EXPECT_TRUE(std::equal(given.begin() + 1, given.end(), told.begin()));
    told.pop_back();
    prefix.pop_back();
    EXPECT_EQ(told.size() + prefix.size(), 15u);
    EXPECT_NE(text.find(text_of(prefix) + text_of(told)), std::string::npos);
    cuts.insert(prefix.size());
  }
  EXPECT_GT(cuts.size(), 3u);  // by chance
}

TEST_F(PairFiles, TranslationIsTheRowsOfItsFiles) {
  write("a.jsonl",
        "{\"source\": \"eins\", \"target\": \"one\"}\n\n{\"target\": \"two\", \"source\": \"zwei\", \"n\": 2}\n");
  write("b.jsonl", "{\"source\": \"drei\", \"target\": \"three\"}\n{\"source\": \"vier\", \"target\": \"four\"}\n");
  const Config config = experiment(
      with({R"(data.source="translation")", fmt::format("data.path=[\"{}\", \"{}\"]", path("a.jsonl"), path("b.jsonl")),
            "model.end_token=10", "data.validation_fraction=0.25"}),
      plugin);
  const auto source = make_batch_source(config.settings);
  std::multiset<std::string> rows;
  const HostBatch batch = source->train(0, 0, 6);  // two epochs of three
  for (std::int64_t row = 0; row < 6; ++row) {
    rows.insert(text_of(row_of(batch.spaces[0], batch.spaces[0].token, row)) +
                text_of(row_of(batch, batch.label, row)));
  }
  EXPECT_THAT(
      rows, ElementsAre("drei\nthree\n", "drei\nthree\n", "eins\none\n", "eins\none\n", "zwei\ntwo\n", "zwei\ntwo\n"));
  EXPECT_EQ(source->validation_sequences(), 1);
  const HostBatch held_out = source->validation(0, 1);
  EXPECT_EQ(text_of(row_of(held_out, held_out.label, 0)), "four\n");
}

TEST_F(PairFiles, TranslationsThatAreTooLongAreToldByKey) {
  write("a.jsonl",
        "{\"source\": \"short\", \"target\": \"short\"}\n{\"source\": \"a source that is far too long\", "
        "\"target\": \"x\"}\n{\"source\": \"x\", \"target\": \"a target that is far too long\"}\n");
  const auto open = [&](const char* too_long) {
    const Config config = experiment(with({R"(data.source="translation")", "data.path=\"" + path("a.jsonl") + "\"",
                                           "data.validation_fraction=0.0", std::string("data.too_long=") + too_long}),
                                     plugin);
    return make_batch_source(config.settings);
  };
  EXPECT_THAT(error_of([&] { open("\"refuse\""); }),
              AllOf(HasSubstr("a.jsonl:2"), HasSubstr("the source has 29 tokens, model.source_length = 16")));
  const HostBatch left = open("\"leave_out\"")->train(0, 0, 2);
  EXPECT_EQ(text_of(row_of(left, left.label, 0)), "short");
  EXPECT_EQ(text_of(row_of(left, left.label, 1)), "short");
  const HostBatch cut = open("\"cut\"")->train(0, 0, 3);
  std::set<std::string> sources;
  for (std::int64_t row = 0; row < 3; ++row) {
    sources.insert(text_of(row_of(cut.spaces[0], cut.spaces[0].token, row)));
  }
  EXPECT_THAT(sources, ElementsAre("a source that is", "short", "x"));
}

TEST_F(PairFiles, TranslationsThatAreNoneAreToldByLine) {
  const auto refused = [&](const std::string& line) {
    write("bad.jsonl", "{\"source\": \"a\", \"target\": \"b\"}\n" + line + "\n");
    const Config config = experiment(with({R"(data.source="translation")", "data.path=\"" + path("bad.jsonl") + "\"",
                                           "data.validation_fraction=0.0"}),
                                     plugin);
    return error_of([&] { make_batch_source(config.settings); });
  };
  EXPECT_THAT(refused("{\"source\": \"a\"}"),
              AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("the texts \"source\" and \"target\"")));
  EXPECT_THAT(refused("no json"), HasSubstr("bad.jsonl:2"));
  EXPECT_THAT(refused("{\"source\": \"\", \"target\": \"b\"}"), HasSubstr("the source has no token"));
}

}  // namespace
}  // namespace orthant::test::encoder_decoder_sources_test
