// What `orthant serve` says to bad requests, and what clients that misbehave cost it.
#include <gmock/gmock.h>

#include <numeric>

#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

namespace fs = std::filesystem;
using launch_test::eventually;
using testing::HasSubstr;

class Refusals : public ServedModel {};

struct Bad {
  std::string body, param, words;
  int status = 400;
};

TEST_F(Refusals, NameTheField) {
  serve();
  const std::vector<Bad> all = {
      {"", "", "JSON"},
      {"{", "", "JSON"},
      {"[1]", "", "expected an object"},
      {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "", "second time"},
      {"{\"prompt\":\"\xC3\"}", "", "JSON"},
      {std::string(100000, '['), "", "nested deeper"},
      {R"({})", "prompt", "missing"},
      {R"({"prompt":""})", "prompt", "no token"},
      {R"({"prompt":[]})", "prompt", "expected a text"},
      {R"({"prompt":7})", "prompt", "expected a text"},
      {R"({"prompt":["a",7]})", "prompt", "mixes"},
      {R"({"prompt":[1,"a"]})", "prompt", "token ids"},
      {R"({"prompt":[256]})", "prompt", "0 to 255"},
      {R"({"prompt":[-1]})", "prompt", "0 to 255"},
      {R"({"prompt":[18446744073709551615]})", "prompt", "0 to 255"},
      {R"({"prompt":[[1],[]]})", "prompt", "no token"},
      {R"({"prompt":"a","promt":1})", "promt", "unknown field"},
      {R"({"prompt":"a","model":"gpt-4"})", "model", "this server has 'r'", 404},
      {R"({"prompt":"a","model":1})", "model", "string"},
      {R"({"prompt":"a","max_tokens":-1})", "max_tokens", "whole number"},
      {R"({"prompt":"a","max_tokens":1.5})", "max_tokens", "whole number"},
      {R"({"prompt":"a","max_tokens":1e400})", "", "JSON"},
      {R"({"prompt":"a","max_tokens":4096})", "prompt", "4096"},
      {R"({"prompt":"a","temperature":-1})", "temperature", "expected a number"},
      {R"({"prompt":"a","temperature":"hot"})", "temperature", "expected a number"},
      {R"({"prompt":"a","top_p":0})", "top_p", "above 0"},
      {R"({"prompt":"a","top_p":1.1})", "top_p", "expected a number"},
      {R"({"prompt":"a","min_p":2})", "min_p", "expected a number"},
      {R"({"prompt":"a","top_k":-2})", "top_k", "whole number"},
      {R"({"prompt":"a","n":0})", "n", "whole number"},
      {R"({"prompt":"a","n":129})", "n", "1 to 128"},
      {R"({"prompt":["a","b","c"],"n":128})", "n", "384 answers"},
      {R"({"prompt":"a","logprobs":21})", "logprobs", "0 to 20"},
      {R"({"prompt":"a","logprobs":true})", "logprobs", "0 to 20"},
      {R"({"prompt":"a","logprobs":20,"n":128,"max_tokens":4000})", "logprobs", "ask in several"},
      {R"({"prompt":"a","echo":1})", "echo", "true or false"},
      {R"({"prompt":"a","stream":"yes"})", "stream", "true or false"},
      {R"({"prompt":"a","stream_options":{"include_usage":true}})", "stream_options", "without"},
      {R"({"prompt":"a","stream":true,"stream_options":{"x":1}})", "stream_options", "nothing else"},
      {R"({"prompt":"a","stop":""})", "stop", "1 to"},
      {R"({"prompt":"a","stop":["b",1]})", "stop", "1 to"},
      {R"({"prompt":"a","stop_token_ids":[256]})", "stop_token_ids", "256"},
      {R"({"prompt":"a","stop_token_ids":7})", "stop_token_ids", "a list"},
      {R"({"prompt":"a","add_special_tokens":1})", "add_special_tokens", "true or false"},
      {R"({"prompt":"a","seed":1.5})", "seed", "whole number"},
      {R"({"prompt":"a","suffix":"b"})", "suffix", "not done"},
      {R"({"prompt":"a","best_of":2})", "best_of", "not done"},
      {R"({"prompt":"a","presence_penalty":2.5})", "presence_penalty", "-2 to 2"},
      {R"({"prompt":"a","frequency_penalty":"x"})", "frequency_penalty", "expected a number"},
      {R"({"prompt":"a","repetition_penalty":0})", "repetition_penalty", "0.001 to 100"},
      {R"({"prompt":"a","repetition_penalty":1e-300})", "repetition_penalty", "0.001 to 100"},
      {R"({"prompt":"a","logit_bias":{"256":1}})", "logit_bias", "0 to 255"},
      {R"({"prompt":"a","logit_bias":{"a":1}})", "logit_bias", "0 to 255"},
      {R"({"prompt":"a","logit_bias":{"5":101}})", "logit_bias", "-100 to 100"},
      {R"({"prompt":"a","logit_bias":[]})", "logit_bias", "an object"},
      {R"({"prompt":"a","min_tokens":17})", "min_tokens", "at most"},
      {R"({"prompt":"a","ignore_eos":1})", "ignore_eos", "true or false"},
      {R"({"prompt":"a","user":5})", "user", "string"},
  };
  for (const Bad& bad : all) {
    const Reply reply = post(bad.body);
    const std::string name = bad.body.substr(0, 80);
    EXPECT_EQ(reply.status, bad.status) << name << reply.body;
    const json error = reply.json()["error"];
    ASSERT_TRUE(error.is_object()) << name << reply.body;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(bad.words)) << name;
    EXPECT_EQ(error["param"], bad.param.empty() ? json() : json(bad.param)) << name;
    EXPECT_EQ(error["type"], bad.status == 404 ? "not_found_error" : "invalid_request_error") << name;
  }
  // A request that only its answer shows to be impossible.
  std::vector<int> every(256);
  std::iota(every.begin(), every.end(), 0);
  const Reply reply = post(json{{"prompt", "a"}, {"stop_token_ids", every}, {"min_tokens", 2}}.dump());
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr("every token ends the answer"));
  // What would change nothing is taken.
  complete({{"prompt", "a"},
            {"suffix", nullptr},
            {"best_of", 1},
            {"presence_penalty", 0.0},
            {"frequency_penalty", 0},
            {"logit_bias", json::object()},
            {"stop", nullptr},
            {"logprobs", nullptr},
            {"stream", false}});
}

TEST_F(Refusals, OfPathsAndMethods) {
  serve({"--model-name", "tiny"});
  EXPECT_EQ(get("/health").json(), (json{{"status", "ok"}}));
  const json model = get("/v1/models").json()["data"][0];
  EXPECT_EQ(model["id"], "tiny");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(get("/v1/models/tiny").json(), model);
  const auto expect = [&](const std::string& request, int status, const std::string& words) {
    const Reply reply = send(request);
    EXPECT_EQ(reply.status, status) << request.substr(0, 80) << reply.body;
    EXPECT_THAT(reply.json()["error"].value("message", ""), HasSubstr(words)) << request.substr(0, 80) << reply.body;
  };
  expect(request_text("GET", "/v1/models/other"), 404, "'tiny'");
  expect(request_text("GET", "/nowhere"), 404, "no '/nowhere'");
  expect(request_text("GET", "/" + std::string(5000, 'a')), 414, "too long");
  expect(request_text("POST", "/" + std::string(5000, 'a'), "{}"), 414, "too long");
  expect(request_text("GET", "/v1/completions"), 405, "expected POST");
  expect(request_text("DELETE", "/v1/completions"), 405, "expected POST");
  expect(request_text("PUT", "/v1/completions", "{}"), 405, "expected POST");
  expect(request_text("POST", "/v1/models", "{}"), 405, "expected GET");
  expect(request_text("POST", "/v1/chat/completions", "{}"), 400, "no chat template");
  expect(request_text("POST", "/v1/chat", "{}"), 404, "/v1/chat/completions");
  expect(request_text("POST", "/v1/completions", "{\"prompt\":\"a\"}", "Content-Type: text/plain\r\n"), 415,
         "application/json");
  expect(request_text("POST", "/v1/completions", "--x", "Content-Type: multipart/form-data; boundary=x\r\n"), 415,
         "application/json");
  expect("garbage\r\n\r\n", 400, "HTTP");
  expect("GET / HTTP/9.9\r\n\r\n", 400, "HTTP");
  EXPECT_EQ(end(), 0);
}

TEST_F(Refusals, OfThoseWithoutTheToken) {
  folder_.write("secret", "s3cret \n");
  fs::permissions(folder_.path("secret"), fs::perms::owner_read);
  serve({"--token-file", "secret"});
  const auto status = [&](const std::string& header) {
    return send(request_text("POST", "/v1/completions", "{\"prompt\":\"a\"}",
                             "Content-Type: application/json\r\n" + header))
        .status;
  };
  EXPECT_EQ(status("Authorization: Bearer s3cret\r\n"), 200);
  for (const char* header :
       {"", "Authorization: Bearer s3cre\r\n", "Authorization: Bearer s3crets\r\n",
        "Authorization: Bearer s3cretS3cret\r\n", "Authorization: Bearer \r\n", "Authorization: Basic s3cret\r\n"}) {
    EXPECT_EQ(status(header), 401) << header;
  }
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(get("/nowhere").status, 401);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Refusals, BeforeItStarts) {
  const auto refused = [&](std::vector<std::string> words, const std::string& why) {
    words.insert(words.begin(), {"serve", "runs/r"});
    const auto result = folder_.orthant(words);
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(result.error, HasSubstr(why));
  };
  refused({"--host", "0.0.0.0"}, "give a token");
  refused({"--host", "192.0.2.1"}, "give a token");
  refused({"--host", "192.0.2.1", "--token", "x"}, "cannot listen on 192.0.2.1");
  refused({"--token", "two words"}, "one word");
  refused({"--token-file", "nowhere"}, "cannot be read");
  folder_.write("secret", "s3cret\n");
  using fs::perms;
  const auto reading = perms::owner_read | perms::owner_write | perms::group_read;
  for (const auto& [mode, shown] :
       {std::pair(reading | perms::others_read, "0644"), std::pair(reading | perms::group_write, "0660")}) {
    fs::permissions(folder_.path("secret"), mode);
    refused({"--token-file", "secret"}, fmt::format("'secret' has the mode {}", shown));
  }
  fs::permissions(folder_.path("secret"), reading);  // that was given to a group
  refused({"--host", "192.0.2.1", "--token-file", "secret"}, "cannot listen on 192.0.2.1");
  serve();
  refused({"--port", std::to_string(port_)}, "cannot listen");
}

TEST_F(Refusals, OfBodiesThatAreTooLarge) {
  serve();
  const std::string large = "{\"prompt\":\"" + std::string(5 << 20, 'a') + "\"}";
  EXPECT_EQ(post(large).status, 413);
  EXPECT_EQ(post(large.substr(0, (4 << 20) - 2) + "\"}").status, 400) << "as large as it may be, and too long a prompt";
  const std::string chunks = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
  Connection endless(port_);
  endless.send(request_text("POST", "/v1/completions", "", chunks));
  while (endless.send("10000\r\n" + std::string(0x10000, 'a') + "\r\n")) {
  }
  EXPECT_EQ(complete({{"prompt", "a"}})["object"], "text_completion");
}

}  // namespace
}  // namespace orthant::serve_test
