// How texts end and begin, from a published folder through training into an export; and our templates as Jinja.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/run/run_text_rules.h"
#include "core/tokenizer/text_rules.h"
#include "plugins/tokenizer/chat/chat_jinja.h"
#include "plugins/tokenizer/chat/chat_rules.h"
#include "plugins/tokenizer/published_tokenizer.h"
#include "plugins/tokenizer/train_tokenizer.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::test::text_ends_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The bytes, and then these.
std::shared_ptr<const Tokenizer> byte_level(const std::vector<std::string>& specials, bool bos_first) {
  json tokenizer = json::parse(read_file(paths::source("tests/tokenizer/wheels.json")))["kinds"]["gpt2"]["tokenizer"];
  std::int64_t next = parse_tokenizer_json("t", tokenizer.dump())->vocabulary();
  for (const std::string& special : specials) {
    tokenizer["added_tokens"].push_back({{"id", next++},
                                         {"content", special},
                                         {"special", true},
                                         {"normalized", false},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false}});
  }
  return parse_tokenizer_json(
      "t", tokenizer.dump(),
      json({{"bos_token", specials[0]}, {"eos_token", specials[1]}, {"add_bos_token", bos_first}}).dump());
}

class PublishedEnds : public testing::Test {
 protected:
  TextRules with(const std::string& generation, const std::string& config) {
    for (const auto& [name, text] : {std::pair{"generation_config.json", generation}, {"config.json", config}}) {
      std::filesystem::remove(folder_ / name);
      if (!text.empty()) {
        std::ofstream(folder_ / name) << text;
      }
    }
    return published_text_rules(folder_ / ".");
  }
  std::string refusal(const std::string& generation) {
    return error_of([&] { require_ends_within(with(generation, ""), 410, "here"); });
  }
  TemporaryFolder folder_;
};

TEST_F(PublishedEnds, AreThoseThatTransformersStopsAt) {
  EXPECT_THAT(with(R"({"eos_token_id": [401, 404]})", R"({"eos_token_id": 7})").end_ids, ElementsAre(401, 404));
  EXPECT_THAT(with(R"({"eos_token_id": 3})", "").end_ids, ElementsAre(3));
  EXPECT_THAT(with(R"({"temperature": 1})", R"({"eos_token_id": [5, 6]})").end_ids, ElementsAre(5, 6));
  EXPECT_THAT(with(R"({"eos_token_id": null})", R"({"eos_token_id": 6})").end_ids, ElementsAre(6));
  EXPECT_TRUE(with("", R"({"eos_token_id": null})").empty());
  EXPECT_THAT(with(R"({"stop_strings": "END"})", "").end_texts, ElementsAre("END"));
}

TEST_F(PublishedEnds, AreRefusedByNameWhereTheyAreNoTokens) {
  EXPECT_THAT(refusal(R"({"eos_token_id": [401, 410]})"), AllOf(HasSubstr("eos_token_id"), HasSubstr("410")));
  EXPECT_THAT(refusal(R"({"eos_token_id": "</s>"})"), AllOf(HasSubstr("generation_config.json"), HasSubstr("</s>")));
  EXPECT_THAT(refusal(R"({"eos_token_id": -1})"), HasSubstr("-1"));
}

TEST(TextRules, JoinTheEndsOfATemplateWithThoseThatThereAre) {
  const auto tokenizer = byte_level({"<bos>", "<eos>", "<|im_start|>", "<|im_end|>"}, true);
  const std::int32_t eos = *tokenizer->id_of("<eos>"), end = *tokenizer->id_of("<|im_end|>");
  const TextRules chatml = rules_of(*chat_template("chatml"), *tokenizer);
  EXPECT_THAT(joined({}, chatml, *tokenizer).end_ids, ElementsAre(eos, end));
  EXPECT_THAT(joined({.end_ids = {4, end}}, chatml, *tokenizer).end_ids, ElementsAre(4, end));
  EXPECT_TRUE(begins_with_bos(*tokenizer, {}));
  EXPECT_FALSE(begins_with_bos(*tokenizer, chatml));
  EXPECT_THAT(rules_of(*chat_template("plain"), *tokenizer).end_texts, ElementsAre("\n\n"));
}

TEST(TextRules, NoTextBeginsWithTwoBos) {
  const auto tokenizer = byte_level({"<bos>", "<eos>"}, true);
  TextReader reader(*tokenizer, {});
  EXPECT_EQ(reader.ids("<bos>ab"), reader.ids("ab"));
  EXPECT_EQ(reader.ids("ab", false), tokenizer->encode("ab"));
  EXPECT_THAT(reader.ids(""), ElementsAre(*tokenizer->special().bos));
}

// A .model reads "<s>" as letters: in a prompt it is the token, as in the conversations that were learnt.
TEST(TextRules, PromptsHaveTheIdsOfTheTemplateByAModelFileToo) {
  const TemporaryFolder folder;
  int line = 0;
  const std::string model = train_tokenizer({.vocabulary = 320}, [&](std::string& text) {
    text = fmt::format("the cat sat on line {} of a small text", line);
    return ++line < 300;
  });
  std::ofstream(folder / "small.model", std::ios::binary) << model;
  const auto tokenizer = load_tokenizer((folder / "small.model").string());
  const auto llama2 = chat_template("llama2");
  std::vector<std::int32_t> learnt;
  ChatEncoder(*tokenizer, llama2).encode({{ChatRole::user, "the cat"}}, learnt);
  for (std::int32_t& id : learnt) {
    id /= 2;
  }
  const TextRules rules = rules_of(*llama2, *tokenizer);
  EXPECT_TRUE(begins_with_bos(*tokenizer, rules));
  EXPECT_THAT(rules.end_ids, ElementsAre(*tokenizer->special().eos));
  EXPECT_EQ(TextReader(*tokenizer, rules).ids("<s>[INST] the cat [/INST]"), learnt);
  EXPECT_NE(tokenizer->encode("<s>[INST] the cat [/INST]"), learnt);
}

TEST(TextRules, TravelAsAFile) {
  const TemporaryFolder folder;
  const TextRules rules{
      .bos = false, .special = {"<|im_end|>"}, .end_ids = {3, 1}, .end_texts = {"\n\n"}, .chat_template = "{{ 'x' }}"};
  keep_text_rules(rules, folder / ".");
  EXPECT_EQ(text_rules_in(folder / "."), rules);
  keep_text_rules({}, folder / ".");
  EXPECT_TRUE(text_rules_in(folder / ".").empty());
}

// tests/export/chat_templates.json has the texts that transformers renders of these templates
// (tests/export/render_templates.py writes it): they are those that ChatEncoder encodes.
TEST(ChatJinja, IsWhatTransformersRenderedAsOurTexts) {
  const json rendered = json::parse(read_file(paths::source("tests/export/chat_templates.json")));
  const auto bytes = byte_level({"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>",
                                 "<|start_header_id|>", "<|end_header_id|>"},
                                false);
  ASSERT_EQ(rendered.size(), 5u);
  for (const auto& [name, one] : rendered.items()) {
    const auto chat = chat_template(name);
    EXPECT_EQ(jinja_of(*chat), one.at("jinja").get<std::string>()) << name << ": run tests/export/render_templates.py";
    for (const json& example : one.at("examples")) {
      Conversation conversation;
      for (const json& m : example.at("messages")) {
        conversation.push_back({m.at("role") == "system" ? ChatRole::system
                                : m.at("role") == "user" ? ChatRole::user
                                                         : ChatRole::assistant,
                                m.at("content").get<std::string>()});
      }
      std::vector<std::int32_t> ids;
      ChatEncoder(*bytes, chat).encode(conversation, ids);
      for (std::int32_t& id : ids) {
        id /= 2;
      }
      EXPECT_EQ(bytes->decode(ids), example.at("text").get<std::string>()) << name;
    }
  }
}

}  // namespace
}  // namespace orthant::test::text_ends_test
