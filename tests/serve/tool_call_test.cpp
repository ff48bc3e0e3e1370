// Calls of tools in an answer's text, however it is cut; and what clients are told of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/serve/chat_request.h"
#include "apps/serve/choice_writer.h"
#include "apps/serve/tool_call_reader.h"
#include "core/tokenizer/model_template.h"

namespace orthant::tool_call_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Read {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Read&) const = default;
};
void PrintTo(const Read& read, std::ostream* out) {
  *out << "'" << read.text << "'";
  for (const auto& [name, arguments] : read.calls) {
    *out << " " << name << "(" << arguments << ")";
  }
}

Read read(const std::vector<std::string>& pieces, bool stopped, bool in_thought) {
  ToolCallReader reader(in_thought);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    reader.add(pieces[i], i + 1 == pieces.size(), stopped);
  }
  Read made{.text = reader.text, .calls = {}};
  for (const ToolCall& call : reader.calls) {
    made.calls.emplace_back(call.name, call.arguments);
  }
  return made;
}

// Whole, byte by byte, and in two pieces at each place.
void expect(const std::string& text, const Read& expected, bool stopped = true, bool in_thought = false) {
  EXPECT_EQ(read({text}, stopped, in_thought), expected) << text;
  std::vector<std::string> bytes;
  for (const char c : text) {
    bytes.emplace_back(1, c);
  }
  bytes.emplace_back();
  EXPECT_EQ(read(bytes, stopped, in_thought), expected) << text;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(read({text.substr(0, at), text.substr(at)}, stopped, in_thought), expected) << text << " cut at " << at;
  }
}

TEST(ToolCalls, AreRead) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  expect(call, {"", {{"f", R"({"a": 1})"}}});
  expect("I ask.\n\n" + call + "\n" + call + " \n", {"I ask.", {{"f", R"({"a": 1})"}, {"f", R"({"a": 1})"}}});
  expect(call + "\nThat is all. ", {"That is all. ", {{"f", R"({"a": 1})"}}});
  // Texts on both sides of a call stay apart.
  expect("a " + call + " b\n" + call + "c" + call + "\td" + call + "\n",
         {"a b\nc\td", std::vector(4, std::pair<std::string, std::string>("f", R"({"a": 1})"))});
  expect("a" + call + " \n" + call + "b", {"a \nb", {{"f", R"({"a": 1})"}, {"f", R"({"a": 1})"}}});
  // As the model wrote them: numbers, order, escapes.
  expect(R"(<tool_call>{"arguments": {"z": 1.50, "n": 123456789012345678901234567890, "a": "\u00e9}\"]"},)"
         R"( "name": "g"}</tool_call>)",
         {"", {{"g", R"({"z": 1.50, "n": 123456789012345678901234567890, "a": "\u00e9}\"]"})"}}});
  expect(R"(<tool_call>{"name": "f", "x": [1, {"arguments": 2}], "n": 3, "arguments":{}}</tool_call>)",
         {"", {{"f", "{}"}}});
  expect(R"(<tool_call>{"name": "f"}</tool_call>)", {"", {{"f", "{}"}}});
  expect(R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)", {"", {{"f", R"({"a": 1})"}}});
  // The end of the answer is that of a call, where the model has ended it.
  expect(R"(a <tool_call>{"name": "f", "arguments": {}})", {"a", {{"f", "{}"}}});
}

TEST(ToolCalls, AndWhatIsNoneStaysText) {
  for (const std::string text :
       {"", "no call", " blanks \n", "<tool_call", "a < b <tool_cal> c", "</tool_call>", "<tool_call></tool_call>",
        "a <tool_call>{\"name\": \"f\", </tool_call> b", "<tool_call>[1]</tool_call>",
        "<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>", "x\n <tool_call>{\"name\": \"f\""}) {
    expect(text, {text, {}});
  }
  // A call that the length has cut short is none, even if it could be read.
  const std::string cut = R"(a <tool_call>{"name": "f", "arguments": {}})";
  expect(cut, {cut, {}}, false);
  expect("<tool_call>x</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>",
         {"<tool_call>x</tool_call>", {{"f", "{}"}}});
}

TEST(ToolCalls, ThatAModelOnlyThinksOfStayText) {
  const std::string call = R"(<tool_call>{"name": "f"}</tool_call>)";
  const std::vector<std::pair<std::string, std::string>> one = {{"f", "{}"}};
  expect("<think>\nI could say " + call + " \n</think>\n\n" + call,
         {"<think>\nI could say " + call + " \n</think>", one});
  expect(call + "\n<think>" + call + "</think> a", {"<think>" + call + "</think> a", one});
  expect("<think> " + call + " ", {"<think> " + call + " ", {}});
  expect("<thinking " + call, {"<thinking", one});
  expect("</think>" + call, {"</think>", one});
  // The prompt has begun the thought.
  expect("Hm. " + call + "\n</think>\n" + call, {"Hm. " + call + "\n</think>", one}, true, true);
  expect(R"(<tool_call>{"name": "g", "arguments": {"a": "<think>"}}</tool_call>)",
         {"", {{"g", R"({"a": "<think>"})"}}});
}

// Conversations rendered as one given text.
class FixedTemplate final : public ModelTemplate {
 public:
  explicit FixedTemplate(std::string text) : text_(std::move(text)) {}
  RenderedTemplate render(const TemplateInput&) const override { return {.text = text_, .generated = {}}; }
  bool mentions(const std::string&, bool) const override { return true; }
  const std::string& where() const override { return text_; }
  std::vector<std::int32_t> ends() const override { return {}; }
  std::uint64_t hash() const override { return 0; }
  std::vector<std::int32_t> ids(const std::string&, bool) const override { return {1}; }

 private:
  std::string text_;
};

TEST(ToolCalls, APromptMayBeginAThought) {
  const auto begins = [](const std::string& prompt) {
    const FixedTemplate chat(prompt);
    const CompletionLimits limits{.model = "m", .vocabulary = 256, .context = 64, .chat = &chat};
    return read_chat(R"({"messages": [{"role": "user", "content": "a"}]})", limits).in_thought;
  };
  EXPECT_TRUE(begins("a<think>"));
  EXPECT_TRUE(begins("a<think>\n"));
  EXPECT_FALSE(begins("a"));
  EXPECT_FALSE(begins("a<think>\n\n</think>\n\n"));
  EXPECT_FALSE(begins("<think>a"));
}

class Told : public testing::Test {
 protected:
  CompletionRequest request(bool stream) const {
    CompletionRequest made;
    made.chat = made.reads_calls = true;
    made.stream = stream;
    made.prompts = {{1}};
    made.choices.resize(1);
    return made;
  }
  static TokenEvent event(const std::string& text, std::optional<Finish> finish = {}) {
    return {.token = {.id = 'a'}, .likeliest = {}, .text = text, .finish = finish};
  }
  std::shared_ptr<const Tokenizer> tokenizer_ = load_tokenizer("bytes");
};

TEST_F(Told, AsOneMessage) {
  const CompletionRequest asked = request(false);
  ChoiceWriter writer(*tokenizer_, asked, 0);
  writer.add(event("<tool_call>{\"name\": \"f\", \"argu"));
  writer.add(event("ments\": {\"a\": 1}}</tool_call>"));
  writer.add(event("", Finish::stop));
  const OrderedJson choice = writer.take();
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  const OrderedJson call = choice["message"]["tool_calls"][0];
  EXPECT_THAT(call["id"].get<std::string>(), StartsWith("call_"));
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], (OrderedJson{{"name", "f"}, {"arguments", "{\"a\": 1}"}}));
  EXPECT_FALSE(call.contains("index"));
}

TEST_F(Told, AsAStream) {
  const CompletionRequest asked = request(true);
  ChoiceWriter writer(*tokenizer_, asked, 0);
  std::vector<OrderedJson> deltas;
  OrderedJson finish;
  const auto tell = [&](const TokenEvent& event) {
    writer.add(event);
    if (writer.anything()) {
      const OrderedJson choice = writer.take();
      deltas.push_back(choice["delta"]);
      finish = choice["finish_reason"];
    }
  };
  for (const char* text : {"I", " ask", "\n<to", "ol_call>{\"name\": \"f\"}", "</tool_call>",
                           "<tool_call>{\"name\": ", "\"g\"}</tool_call>"}) {
    tell(event(text));
  }
  tell(event("", Finish::stop));
  ASSERT_EQ(deltas.size(), 5u);
  EXPECT_EQ(deltas[0], (OrderedJson{{"content", "I"}}));
  EXPECT_EQ(deltas[1], (OrderedJson{{"content", " ask"}}));
  EXPECT_EQ(deltas[2]["tool_calls"][0]["index"], 0);
  EXPECT_EQ(deltas[2]["tool_calls"][0]["function"], (OrderedJson{{"name", "f"}, {"arguments", "{}"}}));
  EXPECT_EQ(deltas[3]["tool_calls"][0]["index"], 1);
  EXPECT_FALSE(deltas[3].contains("content"));
  EXPECT_EQ(deltas[4], OrderedJson::object());
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(Told, WithoutACallAsBefore) {
  const CompletionRequest asked = request(false);
  ChoiceWriter writer(*tokenizer_, asked, 0);
  writer.add(event("<tool_call>{\"name\": \"f\"}", Finish::length));
  const OrderedJson choice = writer.take();
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], "<tool_call>{\"name\": \"f\"}");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

}  // namespace
}  // namespace orthant::tool_call_test
