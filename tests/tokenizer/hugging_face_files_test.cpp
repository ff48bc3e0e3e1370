// A .model as a tokenizer.json: the same ids and texts as SentencePiece, by our own reader and by transformers.
#include "plugins/tokenizer/hugging_face_files.h"
#include "plugins/tokenizer/published_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>
#include <sys/wait.h>

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/utf8.h"
#include "plugins/tokenizer/train_tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/paths.h"

namespace orthant::tokenizer_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const json& fixture() {
  static const json wheels = json::parse(read_file(paths::source("tests/tokenizer/wheels.json")));
  return wheels;
}

// On English with runs of spaces, and on one text of other scripts: most characters have no piece.
std::string trained(const std::string& type) {
  std::istringstream license(read_file(paths::source("LICENSE")));
  std::size_t line = 0;
  return train_tokenizer({.vocabulary = 600, .type = type}, [&](std::string& text) {
    const bool more = static_cast<bool>(std::getline(license, text));
    if (!more) {
      text = line == 0 ? fixture()["texts"].at(line).get<std::string>()
                       : fmt::format("{}  the line {} of    a text", std::string(line % 9, ' '), line);
      ++line;
      std::replace(text.begin(), text.end(), '\n', ' ');
      std::erase(text, '\0');
    }
    return more || line < 100;
  });
}

const std::string& bpe() {
  static const std::string model = trained("bpe");
  return model;
}

const std::string& unigram() {
  static const std::string model = trained("unigram");
  return model;
}

// Fields of protocol buffers. Behind a model they change or add to what it says.
std::string field(int number, const std::string& bytes) {
  std::string result(1, static_cast<char>(number << 3 | 2));
  for (std::size_t size = bytes.size(); size > 0; size >>= 7) {
    result += static_cast<char>((size & 0x7f) | (size > 0x7f ? 0x80 : 0));
  }
  return result + bytes;
}
std::string flag(int number, bool value) {
  const std::string tag =
      number < 16 ? std::string(1, static_cast<char>(number << 3))
                  : std::string{static_cast<char>((number << 3 & 0x7f) | 0x80), static_cast<char>(number >> 4)};
  return tag + static_cast<char>(value ? 1 : 0);
}
std::string piece(const std::string& text, float score, int type) {
  std::string bits(4, '\0');
  const auto value = std::bit_cast<std::uint32_t>(score);
  for (std::size_t i = 0; i < 4; ++i) {
    bits[i] = static_cast<char>(value >> (8 * i));
  }
  return field(1, field(1, text) + std::string(1, 2 << 3 | 5) + bits + std::string{3 << 3, static_cast<char>(type)});
}

constexpr int normal = 1, control = 3, user_defined = 4, unused = 5;
const std::string no_prefix = field(3, flag(3, false)), no_extra_space = field(3, flag(4, true));
const std::string own_pieces = piece("<sep>", 0, user_defined) + piece("foo", 0, user_defined) +
                               piece("\t", 0, user_defined) + piece("\u2581\u2581\u2581\u2581\u2581", 0, user_defined) +
                               piece("fo", 0, user_defined) + piece("(.*)", 0, user_defined);

std::shared_ptr<const Tokenizer> sentencepiece(const std::string& model, const std::string& config = "") {
  const TemporaryFolder folder;
  if (!config.empty()) {
    folder.write("tokenizer_config.json", config);
  }
  return load_tokenizer(folder.write("tokenizer.model", model));
}

std::vector<std::string> texts() {
  std::vector<std::string> all = {"",
                                  " ",
                                  "    ",
                                  "a",
                                  " a ",
                                  "  two  spaces  ",
                                  "\n",
                                  "\t\t a",
                                  "a\r\n b\n\n",
                                  "\u2581 x",
                                  "x \u2581 ",
                                  "x\u2581\u2581y \u2581",
                                  "\u2581",
                                  "fofoofoo fo",
                                  "<sep>x <sep> y<sep><sep>",
                                  "a(.*)b (.*) .*",
                                  "\U0001f600 \u4e2d\u6587 \u0439 e\u0301 \u00e9 \ufb01",
                                  std::string("\0x \0", 4)};
  for (const json& text : fixture()["texts"]) {
    all.push_back(text);
  }
  std::uint32_t state = 1;
  const auto below = [&](std::uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
  };
  static const std::vector<std::string> parts = {" ",  "  ", "     ", "a",     "the", "line",   "<sep>",  "foo",
                                                 "fo", "\t", "\n",    "words", ",",   "\u2581", "\u0439", "\u4e2d"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint32_t i = below(30); i > 0; --i) {
      const char32_t code = 1 + below(round % 4 == 0 ? 0x1ffff : 0x7f);
      if (round % 2 == 0) {
        append_utf8(text, code >= 0xd800 && code < 0xe000 ? U'x' : code);
      } else {
        text += parts[below(static_cast<std::uint32_t>(parts.size()))];
      }
    }
    all.push_back(text);
  }
  // There the name of a special token is that token, and SentencePiece reads it as text.
  std::erase_if(all, [](const std::string& text) {
    return text.find("<s>") != std::string::npos || text.find("</s>") != std::string::npos ||
           text.find("<unk>") != std::string::npos;
  });
  return all;
}

// What is said behind the model, by the test's name.
const std::map<std::string, std::string>& changes() {
  static const std::map<std::string, std::string> all = {{"AsTrained", ""},
                                                         {"NoPrefix", no_prefix},
                                                         {"NoExtraSpace", no_extra_space},
                                                         {"Neither", no_prefix + no_extra_space},
                                                         {"UserDefined", own_pieces},
                                                         {"UserDefinedWithoutPrefix", own_pieces + no_prefix}};
  return all;
}

class SameIds : public testing::TestWithParam<std::string> {};

TEST_P(SameIds, ByOurReaderOfTokenizerJson) {
  const auto model = sentencepiece(bpe() + changes().at(GetParam()));
  const HuggingFaceFiles made = hugging_face_files(*model);
  ASSERT_EQ(made.files.size(), 2u) << testing::PrintToString(made.notes);
  EXPECT_THAT(made.notes, IsEmpty());
  const auto written = parse_tokenizer_json("t", made.files[0].bytes, made.files[1].bytes);
  EXPECT_EQ(written->vocabulary(), model->vocabulary());
  EXPECT_EQ(written->special().bos, model->special().bos);
  EXPECT_EQ(written->special().eos, model->special().eos);
  EXPECT_FALSE(written->special().bos_first);
  const auto theirs = model->encoder(), ours = written->encoder();
  for (const std::string& text : texts()) {
    std::vector<std::int32_t> ids, found;
    theirs->encode(text, ids);
    ours->encode(text, found);
    ASSERT_EQ(found, ids) << '\'' << text << '\'';
    ASSERT_EQ(written->decode(ids), model->decode(ids)) << '\'' << text << '\'';
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SameIds,
                         testing::Values("AsTrained", "NoPrefix", "NoExtraSpace", "Neither", "UserDefined",
                                         "UserDefinedWithoutPrefix"),
                         [](const auto& test) { return test.param; });

TEST(HuggingFaceFiles, OfUnigramModelsHaveTheirScores) {
  const auto model = sentencepiece(unigram() + piece("<sep>", 0, user_defined));
  const HuggingFaceFiles made = hugging_face_files(*model);
  ASSERT_EQ(made.files.size(), 2u);
  const json written = json::parse(made.files[0].bytes)["model"];
  EXPECT_EQ(written["type"], "Unigram");
  EXPECT_EQ(written["unk_id"], 0);
  EXPECT_TRUE(written["byte_fallback"]);
  ASSERT_EQ(written["vocab"].size(), static_cast<std::size_t>(model->vocabulary()));
  double lowest = 0;
  for (std::size_t id = 0; id < written["vocab"].size(); ++id) {
    EXPECT_EQ(model->id_of(written["vocab"][id][0].get<std::string>()), static_cast<std::int32_t>(id));
    lowest = std::min(lowest, id < 259 ? 0.0 : written["vocab"][id][1].get<double>());
  }
  EXPECT_LT(written["vocab"][1][1], 3 * lowest) << "the text <s> would be the token";
  EXPECT_LT(written["vocab"][100][1], 6 * lowest) << "the text <0x61> would be the byte";
  EXPECT_EQ(written["vocab"].back()[1], -0.1);
}

TEST(HuggingFaceFiles, AreNotMadeWhereIdsWouldDiffer) {
  const auto note = [](const std::string& model) {
    const HuggingFaceFiles made = hugging_face_files(*sentencepiece(model));
    return made.files.empty() && made.notes.size() == 1 ? made.notes.front() : "files";
  };
  EXPECT_THAT(note(bpe() + field(2, flag(24, true))), HasSubstr("it writes spaces behind words"));
  EXPECT_THAT(note(bpe() + field(3, flag(5, false))), HasSubstr("it writes spaces behind words, or as they are"));
  EXPECT_THAT(note(bpe() + piece("zzz", -5000, unused)), HasSubstr("unused pieces"));
  EXPECT_THAT(note(bpe() + piece("a\u20ac", -5000, normal)),
              HasSubstr("a character of the piece 'a\u20ac' is no piece"));
  EXPECT_THAT(note(bpe() + piece("qe", -5000, normal) + piece("eqe", -5000, normal)),
              HasSubstr("two pieces have one score"));
  EXPECT_THAT(note(bpe() + no_extra_space + own_pieces), HasSubstr("would change the user-defined piece"));
  // A piece that none of its parts make: it would be taken where it is all that stands between user-defined ones.
  EXPECT_THAT(note(bpe() + piece("qxqxq", -5000, normal) + piece("<sep>", 0, user_defined)),
              HasSubstr("that its merges do not reach, 'qxqxq'"));
  EXPECT_EQ(note(bpe() + piece("<mask>", 0, control)), "files");
}

TEST(HuggingFaceFiles, KeepWhatATokenizerConfigSaysOfTheModel) {
  const auto model =
      sentencepiece(bpe(), R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "legacy": true,
      "eos_token": "</s>", "pad_token": "[PAD]", "chat_template": "{{ bos_token }}", "model_max_length": 77})");
  const HuggingFaceFiles made = hugging_face_files(*model);
  ASSERT_EQ(made.files.size(), 2u);
  const json config = json::parse(made.files[1].bytes);
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["chat_template"], "{{ bos_token }}");
  EXPECT_EQ(config["model_max_length"], 77);
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(config["split_special_tokens"], false);
  EXPECT_FALSE(config.contains("pad_token"));
  EXPECT_FALSE(config.contains("legacy"));
  EXPECT_TRUE(parse_tokenizer_json("t", made.files[0].bytes)->special().bos_first);
  EXPECT_EQ(json::parse(hugging_face_files(*sentencepiece(bpe())).files[1].bytes)["split_special_tokens"], true);
}

TEST(HuggingFaceFiles, LeaveTheModelThatTheyAreMadeOfTheOneThatIsRead) {
  const TemporaryFolder folder;
  for (const std::string& bytes : {bpe(), unigram()}) {
    const auto model = load_tokenizer(folder.write("tokenizer.model", bytes));
    for (const TokenizerFile& file : hugging_face_files(*sentencepiece(bytes)).files) {
      folder.write(file.name, file.bytes);
    }
    EXPECT_EQ(load_tokenizer(folder.path().string())->hash(), model->hash());
    EXPECT_EQ(tokenizer_hash_in(folder.path()), model->hash());
    EXPECT_EQ(load_tokenizer(folder.path().string())->files().front().name, "tokenizer.model");
  }
  // One that somebody changed says something else.
  const std::string changed = hugging_face_files(*sentencepiece(bpe())).files[0].bytes + "\n";
  folder.write("tokenizer.json", changed);
  EXPECT_EQ(load_tokenizer(folder.path().string())->files().front().name, "tokenizer.json");
  EXPECT_NE(tokenizer_hash_in(folder.path()), sentencepiece(unigram())->hash());
}

// Opt-in, as compare_wheels.py: a Python with transformers and sentencepiece.
TEST(HuggingFaceFiles, SlowGiveTransformersTheSameIds) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python with transformers and sentencepiece";
  }
  const TemporaryFolder folder;
  std::string command =
      fmt::format("'{}' -B '{}'", paths::python(), paths::source("tests/tokenizer/check_exported.py"));
  for (const auto& [name, model] : {std::pair{"bpe", bpe()},
                                    {"unigram", unigram()},
                                    {"own", bpe() + own_pieces},
                                    {"no_extra", bpe() + no_extra_space},
                                    {"no_prefix", unigram() + no_prefix}}) {
    std::filesystem::create_directory(folder.path() / name);
    const auto put = [&](const std::string& file, const std::string& bytes) {
      folder.write(fmt::format("{}/{}", name, file), bytes);
    };
    put("tokenizer.model", model);
    put("config.json", R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]})");
    put("texts.json", json(texts()).dump());
    for (const TokenizerFile& file : hugging_face_files(*sentencepiece(model)).files) {
      put(file.name, file.bytes);
    }
    command += fmt::format(" '{}'", (folder.path() / name).string());
  }
  const int status = std::system(command.c_str());
  if (WEXITSTATUS(status) == 3) {
    GTEST_SKIP() << paths::python() << " lacks transformers or sentencepiece";
  }
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace orthant::tokenizer_test
