// Tokenizers: ids are those of the tokenizers library, decode(encode(x)) is x, and what is not done is refused by
// place.
#include "core/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "plugins/tokenizer/published_tokenizer.h"
#include "plugins/tokenizer/regex.h"
#include "plugins/tokenizer/train_tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
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

// By the definition: the pair of the lowest rank is merged, the leftmost first, until there is none.
std::vector<std::int32_t> merged(std::vector<std::string> parts, const json& model) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (const json& merge : model["merges"]) {
    ranks.emplace(std::pair(merge[0].get<std::string>(), merge[1].get<std::string>()), ranks.size());
  }
  for (;;) {
    std::size_t best = ranks.size(), at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == ranks.size()) {
      break;
    }
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const std::string& part : parts) {
    ids.push_back(model["vocab"][part]);
  }
  return ids;
}

// Merges of a few letters that compete for them, so that almost every place of a word is one of several merges'.
json overlapping_merges(const std::vector<std::pair<std::string, std::string>>& merges,
                        const std::vector<std::string>& letters) {
  json model = {{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}};
  const auto add = [&](const std::string& token) { model["vocab"].emplace(token, model["vocab"].size()); };
  std::for_each(letters.begin(), letters.end(), add);
  for (const auto& [left, right] : merges) {
    add(left + right);
    model["merges"].push_back({left, right});
  }
  return model;
}

// A long word may be cut where no merge reaches across; the heap and the plain search agree with the definition.
TEST(Tokenizers, LongWordsAreMergedByTheDefinition) {
  const json model = overlapping_merges({{"b", "c"},
                                         {"a", "b"},
                                         {"c", "a"},
                                         {"a", "bc"},
                                         {"bc", "a"},
                                         {"ab", "ab"},
                                         {"ca", "b"},
                                         {"abab", "ab"},
                                         {"a", "a"},
                                         {"aa", "aa"},
                                         {"abc", "abc"}},
                                        {"a", "b", "c", "d"});
  const auto tokenizer = parse_tokenizer_json("t.json", json{{"added_tokens", json::array()}, {"model", model}}.dump());
  std::uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    std::string word;
    std::vector<std::string> parts;
    for (int i = 0; i < 5 + 2 * round; ++i) {
      state = state * 1664525u + 1013904223u;
      word += "aaabbbccd"[(state >> 16) % 9];
      parts.emplace_back(1, word.back());
    }
    ASSERT_EQ(tokenizer->encode(word), merged(parts, model)) << word;
  }
}

TEST(Tokenizers, UnknownCharactersAreMergedAcrossALongWord) {
  json model = overlapping_merges({{"a", "?"}, {"?", "?"}}, {"a", "?"});
  model["unk_token"] = "?";
  const auto tokenizer = parse_tokenizer_json("t.json", json{{"added_tokens", json::array()}, {"model", model}}.dump());
  std::string word;
  std::vector<std::string> parts;
  for (int i = 0; i < 300; ++i) {
    word += i % 3 == 0 ? "a" : "z";
    parts.emplace_back(i % 3 == 0 ? "a" : "?");
  }
  EXPECT_EQ(tokenizer->encode(word), merged(parts, model));
}

TEST(Tokenizers, BytesBehindAnotherDecoderAreNoLetters) {
  json model = overlapping_merges({}, {"a"});
  for (int byte = 0; byte < 256; ++byte) {
    model["vocab"].emplace(fmt::format("<0x{:02X}>", byte), model["vocab"].size());
  }
  model["byte_fallback"] = true;
  const json decoder = {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "ByteLevel"}}}}};
  const auto tokenizer = parse_tokenizer_json(
      "t.json", json{{"added_tokens", json::array()}, {"model", model}, {"decoder", decoder}}.dump());
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("\u4e2d")).size(), 3u);
  const std::int32_t half = model["vocab"]["<0xC3>"];
  EXPECT_FALSE(tokenizer->decode(std::vector<std::int32_t>{half}).empty());
}

// Eight steps that make sixteen of each letter would make 16 GiB of one.
TEST(Tokenizers, StepsThatMultiplyATextAreStopped) {
  json steps = json::array();
  for (int i = 0; i < 8; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(16, 'a')}});
  }
  const json model = overlapping_merges({}, {"a"});
  const auto with = [&](const char* part, const char* list) {
    return parse_tokenizer_json(
        "t.json",
        json{{"added_tokens", json::array()}, {"model", model}, {part, {{"type", "Sequence"}, {list, steps}}}}.dump());
  };
  EXPECT_THAT(test::error_of([&] { with("normalizer", "normalizers")->encode("a"); }),
              HasSubstr("its normalizer makes more than 262144 bytes of a text of 1"));
  const std::int32_t a = model["vocab"]["a"];
  EXPECT_THAT(test::error_of([&] {
                with("decoder", "decoders")->decode(std::vector<std::int32_t>{a, a});
              }),
              HasSubstr("its decoder makes more than 262144 bytes of a text of 2"));
  steps.erase(steps.begin() + 1, steps.end());
  EXPECT_EQ(with("normalizer", "normalizers")->encode(std::string(10'000, 'a')).size(), 160'000u);
  EXPECT_EQ(with("decoder", "decoders")->decode(std::vector<std::int32_t>(10'000, a)).size(), 160'000u);
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
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}),
              HasSubstr("pre_tokenizer.replacement: one character"));
  EXPECT_THAT(with("/model/vocab/zzz", 3), HasSubstr("have one id, 3"));
}

TEST(Tokenizers, PatternsOfOtherMeaningAreTranslatedOrRefused) {
  EXPECT_EQ(pcre_pattern(R"(\s+(?!\S)|\p{Lu}?[\d]{1,3})"),
            R"(\p{White_Space}+(?!\P{White_Space})|\p{Lu}?[\p{Nd}]{1,3})");
  EXPECT_EQ(pcre_pattern(R"(\p{Han}\u3042)"), R"(\p{sc:Han}\x{3042})");
  EXPECT_EQ(pcre_pattern(R"(\A +|a\z)"), R"(\A +|a\z)");
  for (const char* pattern : {R"(\h)", R"(\b)", "(?i)a", "[[:alpha:]]", "a{,3}", "a{1,2}+", "(?<name>a)", R"(\xff)",
                              "[]a]", R"([\A])", "(*ACCEPT)a", "(*CRLF)a", "a{2}?"}) {
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

TEST(Tokenizers, AVowelBehindASyllableIsNoFinalConsonant) {
  // NFC makes a syllable of two letters, and leaves U+11A7 behind it alone.
  const auto tokenizer = of_kind("neox");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("\u1100\u1161\u11a7b")), "\uac00\u11a7b");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("\u11a7\u11a7\u1100\u1161\u11a8")), "\u11a7\u11a7\uac01");
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
  // Bytes of half a character are bytes.
  const std::vector<std::int32_t> ids = tokenizer->encode("a\u4e2d");
  for (std::size_t count = 1; count <= ids.size(); ++count) {
    const std::string whole = "a\u4e2d", part = tokenizer->decode(std::span(ids).first(count));
    EXPECT_EQ(part, whole.substr(0, part.size()));
  }
  EXPECT_FALSE(tokenizer->special().bos_first);
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "eos_token": "<unk>", "pad_token": "[PAD]"})");
  const auto configured = load_tokenizer(folder.path().string() + "/small.model");
  EXPECT_TRUE(configured->special().bos_first);
  EXPECT_EQ(configured->special().eos, 0);
  EXPECT_EQ(configured->special().pad, std::nullopt);
  EXPECT_EQ(configured->files().size(), 2u);
  EXPECT_EQ(configured->hash(), tokenizer->hash());
  folder.write("tokenizer_config.json", R"({"bos_token": "<|none|>"})");
  EXPECT_THROW(load_tokenizer(folder.path().string() + "/small.model"), ConfigError);
  EXPECT_THROW(load_tokenizer(folder.write("bad.model", bytes.substr(0, bytes.size() / 2))), ConfigError);
  EXPECT_THROW(load_tokenizer((folder.path() / "none.json").string()), ConfigError);
  EXPECT_THROW(load_tokenizer(std::string(5000, 'x')), ConfigError);
  EXPECT_THROW(load_tokenizer(std::string(5000, 'x') + ".json"), ConfigError);
}

// The library's own words name its source files.
TEST(Tokenizers, WhatTheLibraryRefusesIsSaidInOurWords) {
  const TemporaryFolder folder;
  const auto error_of = [](const auto& what) -> std::string {
    try {
      what();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto training = [&](std::int64_t vocabulary, const std::string& type, const std::string& text) {
    return error_of([&] {
      int lines = 0;
      train_tokenizer({.vocabulary = vocabulary, .type = type}, [&](std::string& line) {
        line = text;
        return !text.empty() && ++lines < 50;
      });
    });
  };
  const std::string many = training(9000, "bpe", "hello world"), none = training(300, "bpe", "");
  const std::string few = training(262, "bpe", "the quick brown fox jumps");
  const std::string many_unigram = training(9000, "unigram", "hello world");
  const std::string damaged = error_of([&] { load_tokenizer(folder.write("bad.model", "\x01\x02 no model")); });
  EXPECT_THAT(many, HasSubstr("a vocabulary of 9000 cannot be made from these texts: they can fill 2"));
  EXPECT_THAT(many_unigram, HasSubstr("they can fill 2"));
  EXPECT_THAT(none, HasSubstr("no sentence"));
  EXPECT_THAT(few, HasSubstr("its special tokens, bytes and characters are 2"));
  EXPECT_THAT(damaged, HasSubstr("no SentencePiece model, or damaged"));
  for (const std::string& said : {many, few, many_unigram, none, damaged}) {
    EXPECT_THAT(said, testing::Not(HasSubstr(".cc"))) << said;
  }
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
