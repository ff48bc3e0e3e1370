// Chats of `orthant serve`: what the template makes of a conversation is what completions would be asked with.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

using testing::HasSubstr;

constexpr const char* chat_template =
    "{%- if tools %}{{ tools | tojson }}\n{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' and not loop.first %}{{ raise_exception('The system speaks first.') }}{% endif %}"
    "{{- '<' + message.role + '>' }}"
    "{%- for call in message.tool_calls %}{{ call.function.name }}={{ call.function.arguments | tojson }}{% endfor %}"
    "{{- message.content or '' }}{{ '<end>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant>' + (mood or '') }}{% endif %}";

class Chats : public ServedModel {
 protected:
  void put_template(const std::string& source) {
    std::ofstream file(folder_.run() / "text_rules.json");
    file << json{{"format", 1}, {"begins_with_bos", false}, {"end_texts", {"<end>"}}, {"chat_template", source}};
  }
  void serve_chats(const std::string& source = chat_template) {
    put_template(source);
    serve();
  }
  Reply chat(const std::string& body) const { return send(request_text("POST", "/v1/chat/completions", body)); }
  json answer(const json& asked) const {
    const Reply reply = chat(asked.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  }
  void refused(const std::string& body, const std::string& param, const std::string& words) const {
    const Reply reply = chat(body);
    EXPECT_EQ(reply.status, 400) << body << reply.body;
    const json error = reply.json().value("error", json::object());
    EXPECT_THAT(error.value("message", ""), HasSubstr(words)) << body;
    EXPECT_EQ(error["param"], param) << body;
  }
};

json user(const std::string& text) {
  return {{"role", "user"}, {"content", text}};
}

TEST_F(Chats, AreCompletionsOfWhatTheTemplateMakes) {
  serve_chats();
  EXPECT_THAT(server_->output(), HasSubstr("chat by the run's text_rules.json"));
  const json how = {{"temperature", 0.7}, {"seed", 3}, {"n", 2}};
  // The answer to `asked` is that to the prompt, and has its tokens.
  const auto expect = [&](json asked, const std::string& prompt) {
    asked.update(how);
    json completion = {{"prompt", prompt}, {"max_tokens", 10}};
    completion.update(how);
    const json chats = answer(asked), texts = complete(completion);
    for (std::size_t i = 0; i < 2; ++i) {
      const json& choice = chats["choices"][i];
      EXPECT_EQ(choice["message"]["content"], texts["choices"][i]["text"]) << asked;
      EXPECT_EQ(choice["message"]["role"], "assistant");
      EXPECT_EQ(choice["finish_reason"], texts["choices"][i]["finish_reason"]);
      EXPECT_EQ(choice["index"], i);
    }
    EXPECT_EQ(chats["usage"]["prompt_tokens"], texts["usage"]["prompt_tokens"]) << asked;
    EXPECT_EQ(chats["object"], "chat.completion");
    EXPECT_THAT(chats["id"].get<std::string>(), HasSubstr("chatcmpl-"));
  };
  expect({{"model", "r"}, {"messages", {user("The dog")}}, {"max_tokens", 10}}, "<user>The dog<end>\n<assistant>");
  expect({{"messages", {user("The dog")}}, {"max_completion_tokens", 10}, {"chat_template_kwargs", {{"mood", "sad"}}}},
         "<user>The dog<end>\n<assistant>sad");
  const json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  expect({{"messages", {{{"role", "system"}, {"content", "S"}}, {{"role", "user"}, {"content", parts}}}},
          {"max_tokens", 10}},
         "<system>S<end>\n<user>a\nb<end>\n<assistant>");
  // Keys keep their order; a call's arguments are what their JSON says; a client sends null for what there is not.
  const Reply called = chat(
      R"({"messages":[{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"c","type":"function",)"
      R"("function":{"name":"f","arguments":"{\"z\": 1, \"a\": \"\\u00e9\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"c","content":"4"}],)"
      R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"z":{},"a":1}}}],)"
      R"("tool_choice":"auto","temperature":0,"max_tokens":10})");
  EXPECT_EQ(called.status, 200) << called.body;
  EXPECT_EQ(
      called.json()["choices"][0]["message"]["content"],
      text({{"prompt",
             R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"z": {}, "a": 1}}}])"
             "\n<assistant>f={\"z\": 1, \"a\": \"\xC3\xA9\"}<end>\n<tool>4<end>\n<assistant>"},
            {"temperature", 0},
            {"max_tokens", 10}}));
  // The answer goes on with the last message.
  expect({{"messages", {user("The dog"), {{"role", "assistant"}, {"content", "The lazy "}}}},
          {"continue_final_message", true},
          {"max_tokens", 10}},
         "<user>The dog<end>\n<assistant>The lazy ");
  expect({{"messages", {user("The dog")}}, {"add_generation_prompt", false}, {"max_tokens", 10}},
         "<user>The dog<end>\n");
  // Nobody asked for an end: what there is room for, or the end of the model's texts.
  const json whole = answer({{"messages", {user("a")}}, {"temperature", 0}, {"stop", "."}});
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(end(), 0);
}

TEST_F(Chats, OfAStreamAreThoseOfTheWhole) {
  serve_chats();
  json asked = {{"messages", {user("The dog")}},
                {"max_tokens", 12},
                {"seed", 4},
                {"n", 2},
                {"logprobs", true},
                {"top_logprobs", 2},
                {"temperature", 1.3}};
  const json whole = answer(asked);
  asked["stream"] = true;
  asked["stream_options"] = {{"include_usage", true}};
  const Reply reply = chat(asked.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  std::vector<std::string> content(2), finish(2);
  std::vector<json> scores(2, json::array());
  std::vector<int> parts(2);
  json usage;
  for (std::size_t at = 0, end; (end = reply.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const json event = json::parse(reply.body.substr(at + 6, end - at - 6), nullptr, false);
    if (!event.is_object()) {
      continue;
    }
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    usage = event["usage"];
    for (const json& part : event["choices"]) {
      const std::size_t i = part["index"];
      if (parts[i]++ == 0) {
        EXPECT_EQ(part["delta"], (json{{"role", "assistant"}, {"content", ""}}));
        EXPECT_TRUE(part["finish_reason"].is_null());
      }
      content[i] += part["delta"].value("content", "");
      finish[i] = part["finish_reason"].is_null() ? "" : part["finish_reason"].get<std::string>();
      for (const json& score : part["logprobs"].is_null() ? json::array() : part["logprobs"]["content"]) {
        scores[i].push_back(score);
      }
    }
  }
  EXPECT_THAT(reply.body, testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_EQ(usage, whole["usage"]);
  for (std::size_t i = 0; i < 2; ++i) {
    const json& choice = whole["choices"][i];
    EXPECT_EQ(json(content[i]), choice["message"]["content"]);
    EXPECT_EQ(json(finish[i]), choice["finish_reason"]);
    EXPECT_EQ(scores[i], choice["logprobs"]["content"]);
    ASSERT_EQ(scores[i].size(), 12);
    std::string said;
    for (const json& score : scores[i]) {
      ASSERT_EQ(score["top_logprobs"].size(), 2);
      EXPECT_LE(score["logprob"], score["top_logprobs"][0]["logprob"]);
      for (const json& byte : score["bytes"]) {
        said += static_cast<char>(byte.get<int>());
      }
    }
    EXPECT_EQ(said.substr(0, 5), content[i].substr(0, 5));
  }
}

TEST_F(Chats, RefuseWhatTheTemplateWouldNotSee) {
  serve_chats();
  const auto with = [](const std::string& more) {
    return R"({"messages":[{"role":"user","content":"a"}],)" + more + "}";
  };
  refused("{}", "messages", "missing");
  refused(R"({"messages":[]})", "messages", "at least one");
  refused(R"({"messages":["a"]})", "messages", "message 0 is \"a\"");
  refused(R"({"messages":[{"role":"cat","content":"a"}]})", "messages", "the role is \"cat\"");
  refused(R"({"messages":[{"role":"user"}]})", "messages", "message 0 has no content");
  refused(R"({"messages":[{"role":"assistant"}]})", "messages", "neither content nor tool_calls");
  refused(R"({"messages":[{"role":"user","content":"a","weight":2}]})", "messages", "'weight'");
  refused(R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})", "messages", "image_url");
  refused(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]})", "messages",
          "arguments of a call");
  refused(R"({"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}]})", "messages",
          "refuses this conversation: The system speaks first.");
  refused(with(R"("chat_template_kwargs":{"enable_thinking":false})"), "chat_template_kwargs", "'enable_thinking'");
  refused(with(R"("chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs", "of the request itself");
  refused(with(R"("reasoning_effort":"low")"), "reasoning_effort", "does not know it");
  refused(with(R"("documents":[{"text":"a"}])"), "documents", "knows of none");
  refused(with(R"("tools":[{"name":"f"}])"), "tools", "expected {\"type\": \"function\"");
  refused(with(R"("tool_choice":"required")"), "tool_choice", "never forces");
  refused(with(R"("parallel_tool_calls":false)"), "parallel_tool_calls", "not done");
  refused(with(R"("continue_final_message":true,"add_generation_prompt":true)"), "continue_final_message", "both true");
  refused(with(R"("max_tokens":5,"max_completion_tokens":6)"), "max_completion_tokens", "give one of them");
  refused(with(R"("max_tokens":0)"), "max_tokens", "from 1");
  refused(with(R"("max_tokens":4096)"), "messages", "4096");
  refused(with(R"("top_logprobs":2)"), "top_logprobs", "without");
  refused(with(R"("logprobs":1)"), "logprobs", "true or false");
  refused(with(R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})"), "response_format",
          "expected {\"type\": \"json_schema\"");
  const auto schema = [&](const std::string& text, const std::string& more = "") {
    return with(R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":)" + text + more + "}}");
  };
  refused(schema(R"({"type":"object","properties":{"a":{"type":"string","pattern":"x"}}})"), "response_format",
          "'response_format.json_schema.schema.properties.a' has 'pattern'");
  refused(schema(R"({"type":"object","properties":{}})", R"(,"strict":1)"), "response_format", "'strict' of 1");
  refused(with(R"("prompt":"a")"), "prompt", "unknown field");
  refused(with(R"("logit_bias":{"256":1})"), "logit_bias", "0 to 255");
  EXPECT_EQ(get("/v1/chat/completions").status, 405);
}

// The tiny model has never seen a brace.
TEST_F(Chats, AreJsonObjects) {
  serve_chats();
  int whole = 0;
  for (int seed = 0; seed < 12; ++seed) {
    const json choice = answer({{"messages", {user("The dog")}},
                                {"max_tokens", 300},
                                {"seed", seed},
                                {"temperature", 1},
                                {"logit_bias", {{"34", 4}, {"125", 9}, {"58", 4}, {"44", 1}}},
                                {"response_format", {{"type", "json_object"}}}})["choices"][0];
    const std::string said = choice["message"]["content"];
    EXPECT_EQ(json::parse(said, nullptr, false).is_object(), choice["finish_reason"] == "stop") << said;
    EXPECT_EQ(said.substr(said.find_first_not_of(" \n\t\r"), 1), "{");
    whole += choice["finish_reason"] == "stop" ? 1 : 0;
  }
  EXPECT_GT(whole, 6);
  EXPECT_EQ(text({{"prompt", "a"},
                  {"logit_bias", {{"123", 50}, {"125", 100}}},
                  {"response_format", {{"type", "json_object"}}}}),
            "{}");
}

TEST_F(Chats, FollowASchema) {
  serve_chats();
  const json schema = json::parse(R"({"type": "object", "properties": {"dog": {"enum": ["lazy", "awake"]},
    "hours": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    "more": {"anyOf": [{"$ref": "#/$defs/cat"}, {"type": "null"}]}}, "required": ["dog", "hours", "more"],
    "additionalProperties": false, "$defs": {"cat": {"type": "object", "properties": {"name": {"type": "string"}},
    "required": ["name"], "additionalProperties": false}}})");
  const json format = {{"type", "json_schema"}, {"json_schema", {{"name", "d"}, {"strict", true}, {"schema", schema}}}};
  int whole = 0;
  for (int seed = 0; seed < 6; ++seed) {
    const json choice = answer({{"messages", {user("The dog")}},
                                {"max_tokens", 300},
                                {"seed", seed},
                                {"logit_bias", {{"32", -9}, {"34", 4}, {"125", 9}, {"93", 4}, {"44", 4}}},
                                {"response_format", format}})["choices"][0];
    const json said = json::parse(choice["message"]["content"].get<std::string>(), nullptr, false);
    EXPECT_EQ(said.is_object(), choice["finish_reason"] == "stop") << choice;
    if (said.is_object()) {
      EXPECT_TRUE(said["dog"] == "lazy" || said["dog"] == "awake") << said;
      EXPECT_TRUE(said["hours"].size() >= 1 && said["hours"].size() <= 3 && said["hours"][0].is_number_integer())
          << said;
      EXPECT_TRUE(said["more"].is_null() || said["more"]["name"].is_string()) << said;
      EXPECT_EQ(said.size(), 3u) << said;
      ++whole;
    }
  }
  EXPECT_GE(whole, 4);
}

TEST_F(Chats, WithoutATemplateSayWhatToDo) {
  serve();
  EXPECT_THAT(server_->output(), HasSubstr("no chat"));
  refused(R"({"messages":[{"role":"user","content":"a"}]})", "messages", "put a chat_template.jinja beside");
  end();
  put_template("a\n{% include 'b' %}");
  serve();
  EXPECT_THAT(server_->error(), HasSubstr("no chat: the run's text_rules.json, line 2: the statement 'include'"));
  refused(R"({"messages":[{"role":"user","content":"a"}]})", "messages", "line 2: the statement 'include'");
  EXPECT_EQ(complete({{"prompt", "a"}})["object"], "text_completion");
}

}  // namespace
}  // namespace orthant::serve_test
