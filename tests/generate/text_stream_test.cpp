// Text piece by piece is the text of all ids; no piece has half a character.
#include "apps/lm/text_stream.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/utf8.h"
#include "plugins/tokenizer/published_tokenizer.h"
#include "plugins/tokenizer/train_tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/paths.h"

namespace orthant::text_stream_test {
namespace {

std::vector<std::int32_t> bytes_of(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<std::int32_t>& before,
                     const std::vector<std::int32_t>& ids) {
  TextStream stream(tokenizer, before);
  std::string all;
  for (const std::int32_t id : ids) {
    const std::string piece = stream.add(id);
    EXPECT_EQ(valid_utf8(piece), piece.size());
    all += piece;
  }
  return all + stream.finish();
}

TEST(TextStream, WholeCharactersOnly) {
  const auto bytes = load_tokenizer("bytes");
  TextStream stream(*bytes, {});
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.add(0x82), "");
  EXPECT_EQ(stream.add(0xAC), "€");
  EXPECT_EQ(stream.add('a'), "a");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, AllPiecesAreTheText) {
  const auto bytes = load_tokenizer("bytes");
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += "naïve — 日本語 🦊 plain ";
  }
  EXPECT_EQ(streamed(*bytes, bytes_of("before "), bytes_of(text)), text);
}

TEST(TextStream, BytesThatAreNoCharacterAreReplaced) {
  const auto bytes = load_tokenizer("bytes");
  EXPECT_EQ(streamed(*bytes, {}, {'a', 0xFF, 'b', 0xC3}), "a\uFFFDb\uFFFD");
  EXPECT_EQ(streamed(*bytes, {}, {0xF0, 0x9F, 'x', 'y', 'z'}), "\uFFFD\uFFFDxyz");
  TextStream stream(*bytes, {});
  EXPECT_EQ(stream.add(0xFF), "\uFFFD");  // nothing is waited for
  EXPECT_EQ(stream.add(0x80), "\uFFFD");
}

// Byte-level, with byte fallback, and a .model, which has both pieces with spaces and bytes.
TEST(TextStream, AllPiecesAreTheTextOfEveryKindOfTokenizer) {
  const auto wheels = nlohmann::json::parse(read_file(paths::source("tests/tokenizer/wheels.json")))["kinds"];
  const TemporaryFolder folder;
  int line = 0;
  const std::string model = train_tokenizer({.vocabulary = 320}, [&](std::string& text) {
    text = fmt::format("the cat sat on line {} of a small text", line);
    return ++line < 300;
  });
  const std::string text = "the cat 日本 sat on  a 🦊\n mat";
  for (const auto& tokenizer : {load_tokenizer("bytes"), load_tokenizer(folder.write("small.model", model)),
                                parse_tokenizer_json("gpt2", wheels["gpt2"]["tokenizer"].dump()),
                                parse_tokenizer_json("llama2", wheels["llama2"]["tokenizer"].dump())}) {
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    ASSERT_EQ(tokenizer->decode(ids), text) << tokenizer->name();
    for (std::size_t begin = 0; begin < ids.size(); ++begin) {
      const std::vector<std::int32_t> before(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(begin)),
          after(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
      const std::string known = tokenizer->decode(before);
      if (valid_utf8(known) == known.size()) {
        EXPECT_EQ(known + streamed(*tokenizer, before, after), text) << tokenizer->name() << ", behind " << begin;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::text_stream_test
