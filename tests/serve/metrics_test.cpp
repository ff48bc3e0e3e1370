// What `orthant serve` tells of itself, and prompts that begin as earlier ones.
#include <gmock/gmock.h>

#include <thread>

#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

using testing::HasSubstr;

class Prefixes : public ServedModel {
 protected:
  // Of /metrics, by name with labels.
  std::map<std::string, double> metrics() const {
    const Reply reply = get("/metrics");
    EXPECT_EQ(reply.status, 200);
    EXPECT_THAT(reply.head, HasSubstr("text/plain; version=0.0.4"));
    std::map<std::string, double> found;
    std::stringstream lines(reply.body);
    for (std::string line; std::getline(lines, line);) {
      if (const std::size_t space = line.rfind(' '); !line.starts_with('#') && space != std::string::npos) {
        found[line.substr(0, space)] = std::stod(line.substr(space + 1));
      } else {
        EXPECT_TRUE(line.starts_with("# HELP orthant_") || line.starts_with("# TYPE orthant_")) << line;
      }
    }
    return found;
  }
};

std::string long_text(int begin) {
  std::string text;
  for (int i = 0; text.size() < 200; ++i) {
    text += "The lazy dog sleeps " + std::to_string((begin + i) % 7) + " hours. ";
  }
  return text.substr(0, 200);
}

TEST_F(Prefixes, GiveTheBitsOfAnAnswerWithoutThem) {
  const auto asked = [](int begin, int seed) {
    return json{{"prompt", long_text(begin) + std::string("abc", static_cast<std::size_t>(seed % 4))},
                {"max_tokens", 80},
                {"seed", seed},
                {"temperature", 0.9},
                {"logprobs", 2},
                {"repetition_penalty", 1.1}};
  };
  serve({"--prefix-memory", "0"});
  std::vector<json> alone;
  for (int i = 0; i < 8; ++i) {
    const json answer = complete(asked(i % 2, i));
    EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    alone.push_back(answer["choices"]);
  }
  end();
  serve();
  EXPECT_EQ(complete(asked(0, 0))["choices"], alone[0]);
  const json again = complete(asked(0, 0));
  EXPECT_EQ(again["choices"], alone[0]);
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
  std::vector<json> together(8);
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] { together[static_cast<std::size_t>(i)] = complete(asked(i % 2, i))["choices"]; });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(together, alone);
  // What goes on from an answer begins with it.
  json next = asked(0, 0);
  next["prompt"] = next["prompt"].get<std::string>() + alone[0][0]["text"].get<std::string>() + " And";
  const json known = complete(next)["usage"]["prompt_tokens_details"]["cached_tokens"];
  EXPECT_GE(known, 192);
  // A prompt that is scored is computed whole, and is not counted as looked for.
  json scored = asked(0, 0);
  scored["echo"] = true;
  EXPECT_EQ(complete(scored)["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(end(), 0);
}

TEST_F(Prefixes, AndAnswersAreCounted) {
  serve();
  auto now = metrics();
  EXPECT_EQ(now["orthant_requests_running"], 0);
  EXPECT_EQ(now["orthant_generation_tokens_total"], 0);
  const json asked = {{"prompt", long_text(0)}, {"max_tokens", 5}, {"seed", 1}, {"n", 2}};
  complete(asked);
  complete(asked);
  complete({{"prompt", "a"}, {"max_tokens", 9}, {"temperature", 0}, {"logit_bias", {{"120", 100}}}, {"stop", "xx"}});
  ASSERT_TRUE(launch_test::eventually([&] { return metrics()["orthant_requests_running"] == 0; }));
  now = metrics();
  EXPECT_EQ(now["orthant_requests_waiting"], 0);
  EXPECT_EQ(now["orthant_prompt_tokens_total"], 4 * 200 + 1);
  EXPECT_EQ(now["orthant_generation_tokens_total"], 4 * 5 + 2);
  EXPECT_EQ(now["orthant_requests_total{finished_reason=\"length\"}"], 4);
  EXPECT_EQ(now["orthant_requests_total{finished_reason=\"stop\"}"], 1);
  EXPECT_EQ(now["orthant_requests_total{finished_reason=\"error\"}"], 0);
  EXPECT_EQ(now["orthant_prefix_cache_queries_total"], 4 * 200 + 1);
  EXPECT_GE(now["orthant_prefix_cache_hits_total"], 2 * 192);
  EXPECT_EQ(now["orthant_prefix_cache_pages"], 3);
  EXPECT_EQ(now["orthant_kv_pages_used"], 0);
  EXPECT_EQ(now["orthant_time_to_first_token_seconds_count"], 5);
  EXPECT_EQ(now["orthant_time_to_first_token_seconds_bucket{le=\"+Inf\"}"], 5);
  EXPECT_LE(now["orthant_time_to_first_token_seconds_bucket{le=\"0.001\"}"],
            now["orthant_time_to_first_token_seconds_bucket{le=\"30\"}"]);
  EXPECT_GT(now["orthant_time_to_first_token_seconds_sum"], 0);
  // A client that goes away ends its answer.
  Connection gone(port_);
  gone.send(
      request_text("POST", "/v1/completions", json{{"prompt", "a"}, {"max_tokens", 4000}, {"stream", true}}.dump()));
  gone.read("data:");
  EXPECT_GE(metrics()["orthant_requests_running"], 0);
  { const Connection leaves = std::move(gone); }
  EXPECT_TRUE(
      launch_test::eventually([&] { return metrics()["orthant_requests_total{finished_reason=\"abort\"}"] == 1; }));
  EXPECT_EQ(send(request_text("POST", "/metrics", "{}")).status, 405);
}

}  // namespace
}  // namespace orthant::serve_test
