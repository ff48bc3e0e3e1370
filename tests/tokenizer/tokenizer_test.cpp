// Tokenizers: ids are those of the tokenizers library, decode(encode(x)) is x, and what is not done is refused by
// place.
#include "core/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "core/tokenizer/regex.h"
#include "core/tokenizer/train_tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/paths.h"

namespace orthant::tokenizer_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const json& wheels() {
  static const json fixture = json::parse(read_file(paths::source("tests/tokenizer/wheels.json")));
  return fixture;
}

class OfWheels : public testing::TestWithParam<std::string> {};

TEST_P(OfWheels, IdsAreThoseOfTheLibrary) {
  const json& kind = wheels()["kinds"][GetParam()];
  const auto tokenizer = parse_tokenizer_json("tokenizer.json", kind["tokenizer"].dump());
  const auto encoder = tokenizer->encoder();
  for (int round = 0; round < 2; ++round) {  // the second one reads the cache
    for (std::size_t i = 0; i < wheels()["texts"].size(); ++i) {
      std::vector<std::int32_t> ids;
      encoder->encode(wheels()["texts"][i].get<std::string>(), ids);
      ASSERT_EQ(ids, kind["ids"][i].get<std::vector<std::int32_t>>()) << "text " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OfWheels,
                         testing::Values("gpt2", "neox", "llama3", "qwen2", "deepseek2", "deepseek3", "behaviors",
                                         "normal_forms", "llama2", "metaspace_first", "unknown"),
                         [](const auto& test) { return test.param; });

std::shared_ptr<const Tokenizer> of_kind(const char* kind) {
  return parse_tokenizer_json("tokenizer.json", wheels()["kinds"][kind]["tokenizer"].dump());
}

TEST(Tokenizers, GiveEveryTextBack) {
  for (const char* kind : {"gpt2", "deepseek3", "llama2"}) {
    const auto tokenizer = of_kind(kind);
    for (const json& each : wheels()["texts"]) {
      const std::string text = each;
      // <|pad|> takes spaces around it, and Llama 2 reads its own sign for a space as one, and adds one behind </s>.
      if (text.find("<|pad|>") == std::string::npos &&
          (std::string(kind) != "llama2" ||
           (text.find("\u2581") == std::string::npos && text.find("s>") == std::string::npos))) {
        EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << kind;
      }
    }
  }
}

TEST(Tokenizers, BytesThatAreNoTextAreKeptOrRefused) {
  const auto bytes = of_kind("gpt2");
  for (const std::string text : {"a\xff\xfe"
                                 "b",
                                 "\xc3", "x\xed\xa0\x80y", "\xf0\x9f\x91 \xe2\x82", "\x80 word \xfe"}) {
    EXPECT_EQ(bytes->decode(bytes->encode(text)), text);
  }
  EXPECT_EQ(of_kind("llama2")->encode("\xff").size(), 1u);  // <0xFF>
  EXPECT_THROW(of_kind("unknown")->encode("a\xff"), Error);
}

// One merge across a long word: cutting it must not change it. The heap and the plain search agree with the definition.
TEST(Tokenizers, LongWordsAreMergedByTheDefinition) {
  const auto tokenizer = of_kind("gpt2");
  const json model = wheels()["kinds"]["gpt2"]["tokenizer"]["model"];
  std::vector<std::pair<std::string, std::string>> merges;
  for (const json& merge : model["merges"]) {
    merges.emplace_back(merge[0], merge[1]);
  }
  std::uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    std::string word;
    for (int i = 0; i < 30 + round; ++i) {
      state = state * 1664525u + 1013904223u;
      word += "abcdefghijklmnopqrstuvwxyzeeeetttnnooaais"[state >> 24 & 0x27];
    }
    std::vector<std::string> parts;
    for (const char c : word) {
      parts.emplace_back(1, c);
    }
    for (const auto& [left, right] : merges) {  // in the order of ranks, from the left
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        if (parts[i] == left && parts[i + 1] == right) {
          parts[i] += right;
          parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
      }
    }
    std::vector<std::int32_t> expected;
    for (const std::string& part : parts) {
      expected.push_back(model["vocab"][part]);
    }
    ASSERT_EQ(tokenizer->encode(word), expected) << word;
  }
}

std::string refusal(const json& tokenizer) {
  try {
    parse_tokenizer_json("t.json", tokenizer.dump());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Tokenizers, WhatIsNotImplementedIsRefusedByItsPlace) {
  const json good = wheels()["kinds"]["qwen2"]["tokenizer"];
  ASSERT_EQ(refusal(good), "no error");
  const auto with = [&](const char* place, const json& value) {
    json bad = good;
    bad[json::json_pointer(place)] = value;
    return refusal(bad);
  };
  EXPECT_THAT(with("/model/type", "WordPiece"), HasSubstr("tokenizer 't.json': model.type: the model \"WordPiece\""));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout: dropout"));
  EXPECT_THAT(with("/model/extra", 1), HasSubstr("model: 'extra' is not known"));
  EXPECT_THAT(with("/truncation", json::object()), HasSubstr("truncation: "));
  EXPECT_THAT(with("/normalizer", {{"type", "Precompiled"}}), HasSubstr("the normalizer \"Precompiled\""));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("the decoder \"WordPiece\""));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("post_processor.type"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/behavior", "Sideways"),
              HasSubstr("pre_tokenizer.pretokenizers[0].behavior: the behavior \"Sideways\""));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a&&b]"), HasSubstr("'&&' in a class"));
  EXPECT_THAT(with("/added_tokens/0/id", 77), HasSubstr("added_tokens[0]: '<|endoftext|>' has the id 77, expected 0"));
  EXPECT_THAT(with("/model/merges/0", "a"), HasSubstr("model.merges[0]: expected two tokens"));
  EXPECT_THAT(with("/model/vocab/zzz", 4000000), HasSubstr("is far beyond"));
  EXPECT_THAT(with("/model/vocab/zzz", 3), HasSubstr("have one id, 3"));
}

TEST(Tokenizers, PatternsOfOtherMeaningAreTranslatedOrRefused) {
  EXPECT_EQ(pcre_pattern(R"(\s+(?!\S)|\p{Lu}?[\d]{1,3})"),
            R"(\p{White_Space}+(?!\P{White_Space})|\p{Lu}?[\p{Nd}]{1,3})");
  EXPECT_EQ(pcre_pattern(R"(\p{Han}\u3042)"), R"(\p{sc:Han}\x{3042})");
  for (const char* pattern :
       {R"(\h)", R"(\b)", "(?i)a", "[[:alpha:]]", "a{,3}", "a{1,2}+", "(?<name>a)", R"(\xff)", "[]a]"}) {
    EXPECT_THROW(pcre_pattern(pattern), ConfigError) << pattern;
  }
}

TEST(Tokenizers, SpecialTokensComeFromTheTemplateAndTheConfigBesideIt) {
  EXPECT_EQ(of_kind("llama3")->special().bos, 0);
  EXPECT_EQ(of_kind("llama3")->special().eos, std::nullopt);
  const std::string text = wheels()["kinds"]["llama3"]["tokenizer"].dump();
  const auto tokenizer =
      parse_tokenizer_json("t", text, R"({"eos_token": {"content": "<|endoftext|>"}, "pad_token": "<|pad|>"})");
  EXPECT_EQ(tokenizer->special().eos, 0);
  EXPECT_EQ(tokenizer->special().pad, 1);
  EXPECT_EQ(tokenizer->files().size(), 2u);
  EXPECT_THROW(parse_tokenizer_json("t", text, R"({"eos_token": "<nothing>"})"), ConfigError);
}

TEST(Tokenizers, ATrainedModelGivesTextBack) {
  const TemporaryFolder folder;
  int line = 0;
  const std::string bytes = train_tokenizer({.vocabulary = 340}, [&](std::string& text) {
    text = fmt::format("line {} of a small  text, with words that come again and again", line);
    return ++line < 300;
  });
  const auto tokenizer = load_tokenizer(folder.write("small.model", bytes));
  EXPECT_EQ(tokenizer->vocabulary(), 340);
  EXPECT_EQ(tokenizer->special().eos, 2);
  for (const std::string text : {"words come again", "  two  spaces ", "\u4e2d\n\ttab\U0001f600"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  EXPECT_THROW(load_tokenizer(folder.write("bad.model", bytes.substr(0, bytes.size() / 2))), ConfigError);
  EXPECT_THROW(load_tokenizer((folder.path() / "none.json").string()), ConfigError);
}

// Opt-in, as tests/export/transformers_test.cpp: a Python with the wheels tokenizers and sentencepiece.
TEST(Tokenizers, SlowIdsAreThoseOfTheWheels) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python with tokenizers and sentencepiece";
  }
  const int status = std::system(fmt::format("'{}' -B '{}' '{}' 0.05", paths::python(),
                                             paths::source("tests/tokenizer/compare_wheels.py"), paths::program())
                                     .c_str());
  if (WEXITSTATUS(status) == 3) {
    GTEST_SKIP() << paths::python() << " lacks tokenizers or sentencepiece";
  }
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace orthant::tokenizer_test
