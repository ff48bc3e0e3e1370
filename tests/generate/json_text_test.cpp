// Which bytes are the beginning of a JSON object, against a parser of JSON.
#include "apps/lm/json_text.h"

#include "apps/lm/json_tokens.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

#include <orthant/error.h>
#include <orthant/random.h>

#include "tests/support/run_supervisor.h"

namespace orthant::json_text_test {
namespace {

using nlohmann::json;

bool whole(const std::string& bytes) {
  JsonText text;
  return text.add(bytes) && text.whole();
}

TEST(JsonText, AcceptsWhatAParserDoes) {
  const std::vector<std::string> seeds = {
      R"({})",
      R"( { "a" : [ 1 , -2.5e+3 , 0.0, 10E-2, true,false , null , {} , [] , [[]] ] , "b\n\u00e9" : "\"\\\/" } )",
      "{\"\xC3\xA9\":\"\xE4\xB8\x96\xF0\x9F\x98\x80\"}", R"({"a":{"b":{"c":[{"d":0}]}}})"};
  const std::string letters = "{}[]\":,\\u0129eE+-.tfn \n\x80\xC3\xA9";
  std::uint64_t at = 0;
  const auto draw = [&](std::size_t count) { return static_cast<std::size_t>(below({9}, at++, count)); };
  const std::regex narrower("[eE][+-]?[0-9]{3}|[dD][89abAB]");
  int good = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = seeds[draw(seeds.size())];
    for (std::size_t changes = draw(4); changes > 0; --changes) {
      const std::size_t place = draw(text.size());
      const char c = letters[draw(letters.size())];
      switch (draw(3)) {
        case 0: text[place] = c; break;
        case 1: text.insert(place, 1, c); break;
        default: text.erase(place, 1);
      }
      text += text.empty() ? "{" : "";
    }
    const json parsed = json::parse(text, nullptr, false);
    if (std::regex_search(text, narrower)) {
      continue;
    }
    EXPECT_EQ(whole(text), parsed.is_object()) << text;
    good += parsed.is_object() ? 1 : 0;
  }
  EXPECT_GT(good, 2500);
}

// What is accepted can always be gone on with: no beginning is a dead end.
TEST(JsonText, HasNoDeadEnd) {
  for (int run = 0; run < 300; ++run) {
    JsonText text;
    std::string said;
    for (int i = 0; i < 200 && !text.whole(); ++i) {
      std::vector<JsonText> next;
      std::vector<char> bytes;
      for (int c = 0; c < 256; ++c) {
        JsonText tried = text;
        if (tried.add(static_cast<char>(c))) {
          next.push_back(tried);
          bytes.push_back(static_cast<char>(c));
        }
      }
      ASSERT_FALSE(next.empty()) << said;
      const std::size_t taken =
          static_cast<std::size_t>(below({3}, static_cast<std::uint64_t>(run * 1000 + i), next.size()));
      text = next[taken];
      said += bytes[taken];
    }
    EXPECT_EQ(text.whole(), json::parse(said, nullptr, false).is_object()) << said;
  }
}

TEST(JsonText, IsBounded) {
  EXPECT_FALSE(whole("[1]"));
  EXPECT_FALSE(whole("{}x"));
  EXPECT_TRUE(whole("{} \n"));
  EXPECT_FALSE(whole("{" + std::string(65, ' ') + "}"));
  EXPECT_TRUE(whole("{\"a\":" + std::string(59, '[') + std::string(59, ']') + "}"));
  EXPECT_FALSE(JsonText().add("{\"a\":" + std::string(60, '[')));
  EXPECT_FALSE(JsonText().add(R"({"\ud8)"));
  EXPECT_TRUE(JsonText().add(R"({"\ud7)"));
  EXPECT_TRUE(JsonText().add(R"({"a":123456789012345678)"));
  EXPECT_FALSE(JsonText().add(R"({"a":1234567890123456789)"));
  EXPECT_TRUE(JsonText().add(R"({"a":0.123456789012345678e-12)"));
  EXPECT_FALSE(JsonText().add(R"({"a":0.1234567890123456789)"));
  EXPECT_FALSE(JsonText().add(R"({"a":1e123)"));
}

TEST(JsonTokens, LeaveTokensThatGoOn) {
  const auto tokenizer = load_tokenizer("bytes");
  const JsonTokens bytes(*tokenizer, 256);
  EXPECT_EQ(bytes.of('{'), "{");
  const JsonAnswer text;
  std::vector<float> logits(256, 1);
  bytes.allow(text, logits, {});
  for (int id = 0; id < 256; ++id) {
    const bool may = id == '{' || id == ' ' || id == '\n' || id == '\t' || id == '\r';
    EXPECT_EQ(logits[static_cast<std::size_t>(id)], may ? 1 : -std::numeric_limits<float>::infinity()) << id;
  }
  const std::vector<std::int32_t> ends = {'{', ' ', '\n', '\t', '\r'};
  EXPECT_THROW(bytes.allow(text, logits, ends), Error);
}

// A decoder that writes no space before the first token, and none behind the last.
TEST(JsonTokens, AreWhatTheyAddInsideATextThatGoesOn) {
  const launch_test::TemporaryFolder folder;
  const json model = {{"type", "BPE"},
                      {"vocab", {{"{", 0}, {"}</w>", 1}, {"x", 2}, {"y</w>", 3}, {"_z", 4}}},
                      {"merges", json::array()}};
  const auto step = [](const char* type, json more) {
    more["type"] = type;
    return more;
  };
  const json decoders = {step("Replace", {{"pattern", {{"String", "</w>"}}}, {"content", " "}}),
                         step("Replace", {{"pattern", {{"String", "_"}}}, {"content", " "}}),
                         step("Fuse", json::object()), step("Strip", {{"content", " "}, {"start", 1}, {"stop", 1}})};
  std::ofstream(folder.path() / "tokenizer.json")
      << json{{"version", "1.0"}, {"model", model}, {"decoder", step("Sequence", {{"decoders", decoders}})}};
  const auto tokenizer = load_tokenizer((folder.path() / "tokenizer.json").string());
  const JsonTokens bytes(*tokenizer, 5);
  std::vector<std::string> all;
  for (std::int32_t id = 0; id < 5; ++id) {
    all.push_back(bytes.of(id));
  }
  EXPECT_EQ(all, (std::vector<std::string>{"{", "} ", "x", "y ", " z"}));
}

}  // namespace
}  // namespace orthant::json_text_test
