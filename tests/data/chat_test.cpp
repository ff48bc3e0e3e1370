// Conversations: ids are those of the whole text as a model's own template writes it, and answers alone are learnt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/data/source.h"
#include "core/tokenizer/tokenizer.h"
#include "plugins/tokenizer/chat/chat_template.h"
#include "plugins/tokenizer/published_tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::chat_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> specials = {
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<s>",          "</s>"};

// Byte-level BPE with the special tokens of all templates. kind: "llama3" takes line feeds together wherever they
// stand; "gpt2" leaves the last one to what follows.
json tokenizer_json(const std::string& kind) {
  json tokenizer = json::parse(read_file(paths::source("tests/tokenizer/wheels.json")))["kinds"][kind]["tokenizer"];
  const auto before = parse_tokenizer_json("t", tokenizer.dump());
  std::int64_t next = before->vocabulary();
  for (const std::string& special : specials) {
    if (before->id_of(special)) {
      continue;
    }
    tokenizer["added_tokens"].push_back({{"id", next++},
                                         {"content", special},
                                         {"special", true},
                                         {"normalized", false},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false}});
  }
  return tokenizer;
}

std::string strip(const std::string& text) {
  const auto begin = text.find_first_not_of(" \n\t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \n\t") + 1 - begin);
}

// The templates once more, as their models' own loops write them; answers with their end between \x01 and \x02.
std::string rendered(const std::string& name, const Conversation& conversation) {
  const char* const roles[] = {"system", "user", "assistant"};
  std::string text = name == "llama3" ? "<|begin_of_text|>" : "", system;
  for (const ChatMessage& m : conversation) {
    const std::string role = roles[static_cast<int>(m.role)];
    const bool answer = role == "assistant";
    const std::string on = answer ? "\x01" : "", off = answer ? "\x02" : "";
    if (name == "chatml") {
      text += "<|im_start|>" + role + "\n" + on + m.text + "<|im_end|>" + off + "\n";
    } else if (name == "llama3") {
      text += "<|start_header_id|>" + role + "<|end_header_id|>\n\n" + on + strip(m.text) + "<|eot_id|>" + off;
    } else if (name == "zephyr") {
      text += "<|" + role + "|>\n" + on + m.text + "</s>" + off + "\n";
    } else if (name == "llama2" && role == "system") {
      system = "<<SYS>>\n" + strip(m.text) + "\n<</SYS>>\n\n";
    } else if (name == "llama2" && role == "user") {
      text += "<s>[INST] " + system + strip(m.text) + " [/INST]";
      system = "";
    } else if (name == "llama2") {
      text += on + " " + strip(m.text) + " </s>" + off;
    } else if (role == "system") {
      text += m.text + "\n\n";
    } else {
      text += (answer ? "Assistant:" : "User: ") + on + (answer ? " " : "") + m.text + "\n\n" + off;
    }
  }
  return text;
}

std::string without_marks(std::string text) {
  std::erase_if(text, [](char c) { return c == '\x01' || c == '\x02'; });
  return text;
}

// What stands between the marks.
std::string answers_in(const std::string& text) {
  std::string answers;
  for (std::size_t at = text.find('\x01'); at != std::string::npos; at = text.find('\x01', at + 1)) {
    answers += text.substr(at + 1, text.find('\x02', at) - at - 1);
  }
  return answers;
}

const Conversation two_turns = {{ChatRole::system, "You are kind."},
                                {ChatRole::user, " What is 7 times 6? "},
                                {ChatRole::assistant, "It is 42,\nI think."},
                                {ChatRole::user, "Sure?"},
                                {ChatRole::assistant, "Yes."}};

class Templates : public testing::TestWithParam<const char*> {};

TEST_P(Templates, IdsAreThoseOfTheWholeTextAndAnswersAreMarked) {
  const auto tokenizer = parse_tokenizer_json("t", tokenizer_json("llama3").dump());
  ChatEncoder encoder(*tokenizer, chat_template(GetParam()));
  const std::vector<Conversation> conversations = {
      two_turns,
      {{ChatRole::user, "Hi"}, {ChatRole::assistant, ""}},
      {{ChatRole::user, "\xc3\xa9t\xc3\xa9 \xe2\x98\x83"}, {ChatRole::assistant, "oui, l'\xc3\xa9t\xc3\xa9"}},
      {{ChatRole::user, "only a question"}}};
  for (const Conversation& conversation : conversations) {
    const std::string text = rendered(GetParam(), conversation);
    std::vector<std::int32_t> coded, ids, learnt;
    encoder.encode(conversation, coded);
    for (const std::int32_t code : coded) {
      ids.push_back(code / 2);
      if (code % 2 == 1) {
        learnt.push_back(code / 2);
      }
    }
    EXPECT_EQ(tokenizer->decode(ids), without_marks(text));
    EXPECT_EQ(ids, tokenizer->encode(without_marks(text)));
    EXPECT_EQ(tokenizer->decode(learnt), answers_in(text));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Templates, testing::Values("chatml", "llama3", "llama2", "zephyr", "plain"),
                         [](const auto& test) { return std::string(test.param); });

// Tokenizers that write a space before a text do so behind special tokens or not, each as its library does.
TEST(Chat, SpacesBehindSpecialTokensAreThoseOfTheWholeText) {
  for (const char* kind : {"llama2", "metaspace_first"}) {
    const auto tokenizer = parse_tokenizer_json("t", tokenizer_json(kind).dump());
    for (const char* name : {"llama2", "zephyr"}) {
      std::vector<std::int32_t> coded, ids;
      ChatEncoder(*tokenizer, chat_template(name)).encode(two_turns, coded);
      for (const std::int32_t code : coded) {
        ids.push_back(code / 2);
      }
      EXPECT_EQ(ids, tokenizer->encode(without_marks(rendered(name, two_turns)))) << kind << " " << name;
    }
  }
}

// Line feeds would be a token across the beginning of the answer.
TEST(Chat, NoTokenIsHalfAnAnswer) {
  const auto tokenizer = parse_tokenizer_json("t", tokenizer_json("gpt2").dump());
  ASSERT_EQ(tokenizer->encode("\n\n\n").size(), 2u);
  std::vector<std::int32_t> coded;
  ChatEncoder(*tokenizer, chat_template("zephyr"))
      .encode({{ChatRole::user, "a"}, {ChatRole::assistant, "\n\nb"}}, coded);
  std::string learnt, rest;
  for (const std::int32_t code : coded) {
    (code % 2 == 1 ? learnt : rest) += tokenizer->decode(std::vector<std::int32_t>{code / 2});
  }
  EXPECT_EQ(learnt, "\n\nb</s>");
  EXPECT_EQ(rest, "<|user|>\na</s>\n<|assistant|>\n\n");
}

class ChatFiles : public testing::Test {
 protected:
  // Conversations of bytes, in the template "plain".
  Settings settings(Documents documents, std::int64_t positions = 64) {
    Settings s;
    s.run.directory = (folder_.path() / "runs").string();
    s.data.source = "chat";
    s.data.path = {file_};
    s.data.chat_template = "plain";
    s.data.documents = documents;
    s.data.sequence_length = positions;
    s.data.validation_fraction = 0;
    s.batch.sequences = 2;
    return s;
  }
  std::string error_of(const std::string& lines) {
    file_ = folder_.write("bad.jsonl", lines);
    return test::error_of<ConfigError>([&] { make_batch_source(settings(Documents::packed)); });
  }
  TemporaryFolder folder_;
  std::string file_ = folder_.write("a.jsonl",
                                    "{\"prompt\": \"Hi\", \"completion\": \"Yo\"}\n\n"
                                    "{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\", \"id\": 7}\n"
                                    "{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}]}\n");
};

// Written by hand: tokens, and labels with '.' for -1, of each document of a sequence.
using Pairs = std::multiset<std::pair<std::string, std::string>>;
const Pairs expected = {{"User: Hi\n\nAssistant: Yo\n\n", "................... Yo\n\n."},
                        {"User: Add\n\n1 2\n\nAssistant: 3\n\n", "......................... 3\n\n."},
                        {"User: ?\n\n", "........."}};

Pairs documents_of(const HostBatch& b, bool& alone) {
  Pairs found;
  alone = true;
  for (std::int64_t row = 0; row < b.sequences; ++row) {
    std::vector<std::pair<std::string, std::string>> documents;
    for (std::int64_t i = 0; i < b.positions; ++i) {
      const auto at = static_cast<std::size_t>(row * b.positions + i);
      if (b.valid[at] == 0) {
        EXPECT_EQ(b.label[at], -1);
        continue;
      }
      if (b.position[at] == 0) {
        documents.emplace_back();
      }
      EXPECT_EQ(b.position[at], i - b.first[at]);
      documents.back().first += static_cast<char>(b.token[at]);
      documents.back().second += b.label[at] < 0 ? '.' : static_cast<char>(b.label[at]);
    }
    alone = alone && documents.size() == 1;
    found.insert(documents.begin(), documents.end());
  }
  return found;
}

TEST_F(ChatFiles, AnswersAloneHaveLabelsPackedOrSeparate) {
  bool alone = false;
  Settings s = settings(Documents::separate);
  s.batch.sequences = 3;
  EXPECT_EQ(documents_of(make_batch_source(s)->train(0, 0, 3), alone), expected);
  EXPECT_TRUE(alone);
  s = settings(Documents::packed);  // 22 + 28 + 9 letters in one sequence of 64
  s.batch.sequences = 1;
  EXPECT_EQ(documents_of(make_batch_source(s)->train(0, 0, 1), alone), expected);
  EXPECT_FALSE(alone);
  const HostBatch whole = make_batch_source(settings(Documents::separate))->train(11, 0, 2);
  EXPECT_EQ(make_batch_source(settings(Documents::separate))->train(11, 1, 1).label,
            std::vector<std::int32_t>(whole.label.begin() + 64, whole.label.end()));
}

TEST_F(ChatFiles, LongConversationsAreCutAtTheirEndOrRefusedByTheirLine) {
  Settings s = settings(Documents::separate, 20);
  const std::vector<std::string> notes = check_batch_source(s, true);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_THAT(notes[0], HasSubstr("2 of 3 conversations are longer than data.sequence_length = 20"));
  EXPECT_THAT(notes[1], HasSubstr("2 of 3 conversations have no token of an answer"));
  s.batch.sequences = 3;
  bool alone = false;
  const Pairs found = documents_of(make_batch_source(s)->train(0, 0, 3), alone);
  EXPECT_EQ(found, (Pairs{{"User: Hi\n\nAssistant:", "................... "},
                          {"User: Add\n\n1 2\n\nAssi", "...................."},
                          {"User: ?\n\n", "........."}}));
  s.data.too_long = TooLong::refuse;
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }),
              AllOf(HasSubstr("a.jsonl', line 1:"), HasSubstr("25 tokens")));
  s.data.sequence_length = 26;
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }), HasSubstr("a.jsonl', line 3:"));
  s.data.sequence_length = 29;  // the last token is a label only
  make_batch_source(s);
  s.data.sequence_length = 28;
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }), HasSubstr("30 tokens"));
}

TEST_F(ChatFiles, WhatIsNoConversationIsRefusedByFileAndLine) {
  const std::string good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  EXPECT_THAT(error_of(good + "{\"prompt\": \"a\"}"), AllOf(HasSubstr("bad.jsonl', line 2"), HasSubstr("completion")));
  EXPECT_THAT(error_of(good + good + "{oops}"), HasSubstr("bad.jsonl', line 3"));
  EXPECT_EQ(error_of("{\"prompt\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}, "
                     "{\"role\": \"assistant\", \"content\": \"y\"}]}\n" +
                     good),
            "no error");  // messages say all
  EXPECT_THAT(error_of("[1]"), HasSubstr("line 1: expected an object with one of"));
  EXPECT_THAT(error_of("{\"messages\": []}"), HasSubstr("a list of messages"));
  EXPECT_THAT(error_of("{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}"),
              HasSubstr("\"tool\" is not known"));
  EXPECT_THAT(error_of("{\"messages\": [{\"role\": \"user\", \"content\": null}]}"), HasSubstr("found null"));
  EXPECT_THAT(error_of("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}"), HasSubstr("none of the 1 conv"));
  Settings bare = settings(Documents::packed);
  bare.data.chat_template = folder_.write("bare.toml", "[assistant]\nend = '!'\n");
  bare.data.path = {folder_.write("empty.jsonl", good + "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}]}")};
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(bare); }),
              AllOf(HasSubstr("empty.jsonl', line 2"), HasSubstr("no token")));
}

TEST_F(ChatFiles, TemplatesAreRefusedByTheNameOfTheTokenThatIsMissing) {
  Settings s = settings(Documents::packed);
  s.data.chat_template = "chatml";
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(s, false); }),
              HasSubstr("needs the token <|im_start|>"));
  s.data.chat_template = "jinja";
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(s, false); }), HasSubstr("known are chatml"));
  s = settings(Documents::stream);
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(s, false); }), HasSubstr("write \"packed\""));
  const auto tokenizer = parse_tokenizer_json("t", tokenizer_json("llama3").dump());
  std::vector<std::int32_t> coded;
  EXPECT_THAT(test::error_of<ConfigError>([&] {
                ChatEncoder(*tokenizer, chat_template("chatml")).encode({{ChatRole::user, "a<|im_end|>b"}}, coded);
              }),
              HasSubstr("<|im_end|>"));
  EXPECT_THAT(
      test::error_of<ConfigError>([&] {
        ChatEncoder(*tokenizer, chat_template("llama2")).encode({{ChatRole::user, "a"}, {ChatRole::user, "b"}}, coded);
      }),
      HasSubstr("message 2 is not in turn"));
}

TEST_F(ChatFiles, ATemplateOfTheUsersOwnIsReadStrictly) {
  const auto own = [&](const std::string& text) { return folder_.write("own.toml", text); };
  const std::string llama2 =
      "special = ['<s>', '</s>']\ntrims = true\nalternates = true\n[system]\nbefore = \"<s>[INST] <<SYS>>\\n\"\n"
      "after = \"\\n<</SYS>>\\n\\n\"\n[user]\nbefore = '<s>[INST] '\nafter = ' [/INST]'\n"
      "[assistant]\nbegin = ' '\nend = ' </s>'\n";
  const auto tokenizer = parse_tokenizer_json("t", tokenizer_json("llama3").dump());
  std::vector<std::int32_t> built_in, of_file;
  ChatEncoder(*tokenizer, chat_template("llama2")).encode(two_turns, built_in);
  ChatEncoder(*tokenizer, chat_template(own(llama2))).encode(two_turns, of_file);
  EXPECT_EQ(of_file, built_in);
  EXPECT_EQ(hash_of(*chat_template(own(llama2))), hash_of(*chat_template("llama2")));
  EXPECT_NE(hash_of(*chat_template(own(llama2 + "after = '.'\n"))), hash_of(*chat_template("llama2")));
  const auto refusal = [&](const std::string& text) {
    return test::error_of<ConfigError>([&] { chat_template(own(text)); });
  };
  EXPECT_THAT(refusal("[user]\nbefore = 'a'\n"), HasSubstr("[assistant] has no end"));
  EXPECT_THAT(refusal("stop = 'x'\n[assistant]\nend = 'a'\n"), HasSubstr("own.toml:1:1: 'stop' is no key"));
  EXPECT_THAT(refusal("[assistant]\nend = 1\n"), HasSubstr("own.toml:2:7: end: expected a string, found an integer"));
  EXPECT_THAT(refusal("[assistant]\nfirst = 'a'\nend = 'a'\n"), HasSubstr("'first' is no text around a message"));
  EXPECT_THAT(refusal("special = ['']\n[assistant]\nend = 'a'\n"), HasSubstr("expected the texts of tokens"));
  EXPECT_THAT(refusal("user = 1\n[assistant]\nend = 'a'\n"), HasSubstr("user: expected a table"));
  EXPECT_NE(refusal("[assistant\n"), "no error");
  EXPECT_THAT(test::error_of<ConfigError>([&] { chat_template("/no/such.toml"); }), HasSubstr("/no/such.toml"));
}

}  // namespace
}  // namespace orthant::chat_test
