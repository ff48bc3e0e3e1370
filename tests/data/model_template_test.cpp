// Conversations by the template that a model brings: which text, which ids, and what of it is learnt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <orthant/error.h>

#include "core/data/source.h"
#include "core/tokenizer/model_template.h"
#include "plugins/tokenizer/chat/template_encoder.h"
#include "plugins/tokenizer/published_tokenizer.h"
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

// Both documents of a pair: the text, what is learnt between « and ».
class PairsOfAModel : public OfAModel {
 protected:
  std::vector<std::string> pair(const Tokenizer& by, const std::string& line) {
    folder_.write("pairs.jsonl", line + "\n");
    Settings settings;
    settings.data.source = "pairs";
    settings.data.chat_template = "model";
    settings.data.tokenizer = folder_.path().string();
    settings.data.path = {(folder_.path() / "pairs.jsonl").string()};
    settings.data.documents = Documents::packed;
    settings.data.sequence_length = 1024;
    settings.model.vocab_size = by.vocabulary();
    settings.data.validation_fraction = 0;
    settings.run.directory = (folder_.path() / "runs").string();
    std::vector<std::string> documents;
    for (const SequenceDocument& document : settings.catalogue->get<Source>("pairs").open(settings)->training(0)) {
      std::string part = by.decode(std::span(document.token).first(1));
      bool learns = false;
      for (std::size_t t = 0; t < document.label.size(); ++t) {
        const bool learnt = document.label[t] >= 0;
        part += learnt != learns ? (learnt ? "«" : "»") : "";
        learns = learnt;
        if (t + 1 < document.token.size()) {
          part += by.decode(std::span(document.token).subspan(t + 1, 1));
        } else if (learnt) {
          part += by.decode(std::span(document.label).subspan(t, 1)) + "»";
        }
      }
      documents.push_back(part);
    }
    return documents;
  }
  std::string refused(const Tokenizer& by, const std::string& line) {
    return error_of<ConfigError>([&] { pair(by, line); });
  }
};

TEST_F(PairsOfAModel, HaveTheirPromptOnce) {
  const auto by = tokenizer(text_in("tests/jinja/templates/calls.jinja"));
  const std::string asked =
      "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n7 * 6?<|im_end|>\n<|im_start|>assistant\n";
  const std::vector<std::string> expected = {asked + "«42<|im_end|>»", asked + "«I do not know.<|im_end|>»"};
  const json user = said("user", "7 * 6?"), good = said("assistant", "42"), bad = said("assistant", "I do not know.");
  for (const json& line : {json{{"prompt", "7 * 6?"}, {"chosen", "42"}, {"rejected", "I do not know."}},
                           json{{"prompt", {user}}, {"chosen", {good}}, {"rejected", {bad}}},
                           json{{"prompt", {user}}, {"chosen", good}, {"rejected", bad}},
                           json{{"chosen", {user, good}}, {"rejected", {user, bad}}},
                           json{{"prompt", "7 * 6?"}, {"chosen", {user, good}}, {"rejected", {user, bad}}},
                           json{{"prompt", {user}}, {"chosen", {user, good}}, {"rejected", {bad}}}}) {
    const std::vector<std::string> documents = pair(*by, line.dump());
    ASSERT_EQ(documents.size(), 2u);
    for (std::size_t i = 0; i < 2;
         ++i) {  // behind the answer's end the template writes a line feed, which nobody learns
      EXPECT_THAT(documents[i], testing::StartsWith(expected[i])) << line;
      EXPECT_EQ(documents[i].find("«", expected[i].size()), std::string::npos) << documents[i];
    }
  }
}

// As one conversation of each would be, but that answers within the prompt are given; tools and calls are seen.
TEST_F(PairsOfAModel, AreConversationsByTheSameTemplate) {
  const auto by = tokenizer(text_in("tests/jinja/templates/calls.jinja"));
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}])";
  const std::string call = R"({"role": "assistant", "content": "", "tool_calls": [)"
                           R"({"type": "function", "function": {"name": "f", "arguments": "{\"z\": 1}"}}]})";
  const std::string begun =
      R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "?", "train": false}, )"
      R"({"role": "user", "content": "r"}, )";
  const std::string other = R"({"role": "assistant", "content": "Seven"})";
  const auto documents =
      pair(*by, "{" + tools + R"(, "chosen": [)" + begun + call + R"(], "rejected": [)" + begun + other + "]}");
  const std::string chosen = marked(*by, "{" + tools + R"(, "messages": [)" + begun + call + "]}");
  const std::string rejected = marked(*by, "{" + tools + R"(, "messages": [)" + begun + other + "]}");
  EXPECT_EQ(documents[0] + "\n", chosen);
  EXPECT_EQ(documents[1] + "\n", rejected);
}

TEST_F(PairsOfAModel, WhatSaysNoPairIsRefused) {
  const auto by = tokenizer(text_in("tests/jinja/templates/calls.jinja"));
  EXPECT_THAT(refused(*by, R"({"messages": []})"), HasSubstr("expected an object with \"prompt\""));
  EXPECT_THAT(refused(*by, R"({"chosen": "a", "rejected": "b"})"), HasSubstr("expected a prompt"));
  EXPECT_THAT(refused(*by, R"({"prompt": "q", "chosen": [], "rejected": "b"})"), HasSubstr("under \"chosen\""));
  EXPECT_THAT(refused(*by, R"({"prompt": "q", "system": "s", "chosen": "a", "rejected": "b"})"),
              HasSubstr("\"system\": with data.chat_template = \"model\""));
  EXPECT_THAT(refused(*by, R"({"prompt": "x", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant",)"
                           R"("content": "a"}], "rejected": [{"role": "user", "content": "q"}, {"role": "assistant",)"
                           R"("content": "b"}]})"),
              HasSubstr("\"prompt\" is not what"));
  EXPECT_THAT(refused(*by, R"({"prompt": "q", "documents": ["d"], "chosen": "a", "rejected": "b"})"),
              HasSubstr("knows of none"));
  EXPECT_THAT(refused(*by, R"({"prompt": "q", "loss_mask": [1], "chosen": "a", "rejected": "b"})"),
              HasSubstr("loss_mask"));
  EXPECT_THAT(refused(*by, R"({"prompt": "q", "chosen": {"role": "user", "content": "a"}, "rejected": "b"})"),
              HasSubstr("an answer of the assistant under \"chosen\""));
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
