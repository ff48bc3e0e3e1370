// Conversations by the template that a model brings: which text, which ids, and what of it is learnt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <orthant/error.h>

#include "core/data/model_template.h"
#include "core/data/template_encoder.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::model_template_test {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

std::string text_in(const std::string& name) {
  std::ifstream file(paths::source(name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class OfAModel : public testing::Test {
 protected:
  // A byte-level tokenizer with chatml's tokens, and a config of which `more` is a part.
  std::shared_ptr<const Tokenizer> tokenizer(const std::string& jinja, const json& more = json::object()) {
    json made = json::parse(text_in("tests/tokenizer/wheels.json"))["kinds"]["llama3"]["tokenizer"];
    std::int64_t next = parse_tokenizer_json("t", made.dump())->vocabulary();
    for (const char* special : {"<|im_start|>", "<|im_end|>"}) {
      made["added_tokens"].push_back({{"id", next++},
                                      {"content", special},
                                      {"special", true},
                                      {"normalized", false},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false}});
    }
    folder_.write("tokenizer.json", made.dump());
    json config = {{"eos_token", {{"content", "<|im_end|>"}}}};
    config.update(more);
    folder_.write("tokenizer_config.json", config.dump());
    std::filesystem::remove(folder_.path() / "chat_template.jinja");
    if (!jinja.empty()) {
      folder_.write("chat_template.jinja", jinja);
    }
    return load_tokenizer(folder_.path().string());
  }

  // The text, what is learnt between « and ».
  std::string marked(const Tokenizer& by, const std::string& row) {
    TemplateEncoder encoder(by, ModelTemplate::of({}, by));
    std::vector<std::int32_t> coded, run;
    encoder.encode(row, coded);
    std::string text;
    for (std::size_t i = 0; i < coded.size(); ++i) {
      run.push_back(coded[i] / 2);
      if (i + 1 == coded.size() || coded[i + 1] % 2 != coded[i] % 2) {
        text += coded[i] % 2 == 1 ? "«" + by.decode(run) + "»" : by.decode(run);
        run.clear();
      }
    }
    return text;
  }

  TemporaryFolder folder_;
};

std::string row(const json& messages, const std::string& more = "") {
  return "{\"messages\": " + messages.dump() + more + "}";
}

json said(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

const json two_turns = {said("user", "Hi\n"), said("assistant", "Yes, I am."), said("user", "Sure?"),
                        said("assistant", "I am.")};

TEST_F(OfAModel, AnswersAreWhatTheTextAddsToTheTextBefore) {
  const auto by = tokenizer(text_in("tests/jinja/templates/calls.jinja"));
  EXPECT_EQ(marked(*by, row(two_turns)),
            "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n<|im_start|>assistant\n"
            "«Yes, I am.<|im_end|>»\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n«I am.<|im_end|>»\n");
  // Tools, calls and what they gave.
  EXPECT_EQ(marked(*by, R"({"tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}], "messages": [)"
                        R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [)"
                        R"({"type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},)"
                        R"({"role": "tool", "content": "7"}, {"role": "assistant", "content": "Seven"}]})"),
            "<|im_start|>system\nYou help.\n\n# Tools\n\nSignatures within <tools></tools>:\n<tools>\n"
            R"({"type": "function", "function": {"name": "f", "b": 1, "a": 2}})"
            "\n</tools>\n\nA call is <tool_call>\n{\"name\": <name>, \"arguments\": <json>}\n</tool_call><|im_end|>\n"
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
            "«<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": 2}}\n</tool_call><|im_end|>»\n"
            "<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
            "«Seven<|im_end|>»\n");
  json quiet = two_turns;
  quiet[1]["train"] = false;
  EXPECT_THAT(marked(*by, row(quiet)), HasSubstr("assistant\nYes, I am.<|im_end|>\n"));
  // Ids are those of the whole text.
  std::vector<std::int32_t> coded, ids;
  TemplateEncoder(*by, ModelTemplate::of({}, *by)).encode(row(two_turns), coded);
  for (const std::int32_t code : coded) {
    ids.push_back(code / 2);
  }
  EXPECT_EQ(ids, by->encode(by->decode(ids)));
}

TEST_F(OfAModel, GenerationTagsSayWhatIsLearnt) {
  const auto by = tokenizer(
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %} {{ m.content }}{% endgeneration %}\n"
      "{% else %}U: {{ m.content }}\n{% endif %}{% endfor %}");
  EXPECT_EQ(marked(*by, row({said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")})),
            "U: a\nA:« b»U: c\nA:« d»");
  json quiet = {said("assistant", "b"), said("assistant", "d")};
  quiet[0]["weight"] = 0;
  EXPECT_EQ(marked(*by, row(quiet)), "A: bA:« d»");
}

TEST_F(OfAModel, WhatCannotBeToldOrSeenIsRefused) {
  const auto by = tokenizer(text_in("tests/jinja/templates/thoughts.jinja"));
  const auto refused = [&](const std::string& line) { return error_of<ConfigError>([&] { marked(*by, line); }); };
  // Thoughts of earlier turns are left out of later ones.
  const json thinks = {said("user", "a"), said("assistant", "<think>\nx\n</think>\n\nb"), said("user", "c"),
                       said("assistant", "d")};
  EXPECT_THAT(refused(row(thinks)), HasSubstr("message 2: the template writes this answer in another way once others"));
  json quiet = thinks;
  quiet[1]["train"] = false;
  EXPECT_THAT(marked(*by, row(quiet)), HasSubstr("assistant\n«<think>\n\n</think>\n\nd<|im_end|>»"));
  EXPECT_THAT(refused("{\"text\": \"a\"}"), HasSubstr("a list of \"messages\""));
  EXPECT_THAT(refused(row(json::array({said("cat", "a")}))), HasSubstr("message 1: the role is \"cat\""));
  EXPECT_THAT(refused(row(json::array({said("assistant", "a")}))), HasSubstr("message 1 is an answer"));
  EXPECT_THAT(refused(row(two_turns, R"(, "documents": [{"text": "a"}])")), HasSubstr("knows of none"));
  EXPECT_THAT(refused(row(two_turns, R"(, "chat_template_kwargs": {"nosuch": 1})")),
              HasSubstr("does not know 'nosuch'"));
  EXPECT_THAT(refused(row(two_turns, R"(, "loss_mask": [1, 0])")), HasSubstr("loss_mask"));
  json weighed = two_turns;
  weighed[1]["loss"] = 1;
  EXPECT_THAT(refused(row(weighed)), HasSubstr("\"loss\""));
  const auto strict = tokenizer("{{ raise_exception('No!') }}");
  EXPECT_THAT(error_of<ConfigError>([&] { marked(*strict, row(two_turns)); }),
              HasSubstr("refuses the conversation: No!"));
}

TEST_F(OfAModel, TemplatesStandInThreePlaces) {
  EXPECT_EQ(ModelTemplate::of({}, *tokenizer("")), nullptr);
  const auto text = [](const ModelTemplate& chat, bool tools = false) {
    TemplateInput input;
    input.tools = tools ? OrderedJson::array({OrderedJson::object()}) : OrderedJson();
    return chat.render(input).text;
  };
  const json named = {{"chat_template",
                       {{{"name", "default"}, {"template", "{{ eos_token }} one"}},
                        {{"name", "tool_use"}, {"template", "two"}},
                        {{"name", "rag"}, {"template", "{% include 'x' %}"}}}}};
  const auto config = tokenizer("", named);
  EXPECT_EQ(text(*ModelTemplate::of({}, *config)), "<|im_end|> one");
  EXPECT_EQ(text(*ModelTemplate::of({}, *config), true), "two");
  EXPECT_EQ(text(*ModelTemplate::of({}, *tokenizer("file", named))), "file");
  EXPECT_EQ(text(*ModelTemplate::of({.chat_template = "run"}, *tokenizer("file", named))), "run");
  const auto bad = tokenizer("a\n{{ x | nosuch }}");
  EXPECT_THAT(error_of<ConfigError>([&] { ModelTemplate::of({}, *bad); }),
              testing::AllOf(HasSubstr("chat_template.jinja of"), HasSubstr("line 2: the filter 'nosuch'")));
}

// As transformers 5 finds the end of the last message.
TEST_F(OfAModel, TheLastMessageIsGoneOnWith) {
  const auto by = tokenizer(text_in("tests/jinja/templates/trims.jinja"));
  const auto chat = ModelTemplate::of({}, *by);
  TemplateInput input;
  input.messages =
      OrderedJson::array({{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", " The answer "}}});
  input.continue_final = true;
  EXPECT_THAT(chat->render(input).text, testing::EndsWith("assistant<|end|>\n\nThe answer"));  // it trims
  const auto plain = tokenizer("{% for m in messages %}{{ m.content }}|{% endfor %}");
  EXPECT_EQ(ModelTemplate::of({}, *plain)->render(input).text, "q| The answer ");
  const auto drops = tokenizer("{% for m in messages %}{{ m.role }}{% endfor %}");
  EXPECT_THAT(error_of<ConfigError>([&] { ModelTemplate::of({}, *drops)->render(input); }),
              HasSubstr("cannot be continued"));
}

}  // namespace
}  // namespace orthant::model_template_test
