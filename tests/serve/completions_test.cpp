// What `orthant serve` answers, against its definition: fp64 logits of the whole sequence, token by token.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "apps/pretrained/sample_logits.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"
#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

using testing::HasSubstr;

class Completions : public ServedModel {
 protected:
  void SetUp() override {
    ServedModel::SetUp();
    serve();
  }

  // log p of all bytes behind each byte of `text`.
  std::vector<std::vector<double>> log_probabilities(const std::string& text) const {
    Config config =
        load_config((folder_.run() / "config.resolved.toml").string(), {"moe.capacity_factor=0"}, keys_of_plugin);
    std::vector<std::int32_t> token;
    for (const char c : text) {
      token.push_back(static_cast<unsigned char>(c));
    }
    config.settings.data.sequence_length = static_cast<std::int64_t>(token.size());
    const std::vector<double> logits = sample_logits(config, starting_checkpoint(folder_.run()), token, 1);
    std::vector<std::vector<double>> rows;
    for (std::size_t i = 0; i < token.size(); ++i) {
      rows.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(256 * i),
                        logits.begin() + static_cast<std::ptrdiff_t>(256 * (i + 1)));
      double total = 0;
      for (const double logit : rows.back()) {
        total += std::exp(logit);
      }
      for (double& logit : rows.back()) {
        logit -= std::log(total);
      }
    }
    return rows;
  }
};

TEST_F(Completions, AreTheLikeliestTokensAtTemperature0) {
  std::string expected = "The l";
  for (int i = 0; i < 12; ++i) {
    const std::vector<double> last = log_probabilities(expected).back();
    expected += static_cast<char>(std::max_element(last.begin(), last.end()) - last.begin());
  }
  const json answer =
      complete({{"model", "r"}, {"prompt", "The l"}, {"max_tokens", 12}, {"temperature", 0}, {"user", "somebody"}});
  EXPECT_EQ("The l" + answer["choices"][0]["text"].get<std::string>(), expected);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["index"], 0);
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "r");
  EXPECT_THAT(answer["id"].get<std::string>(), HasSubstr("cmpl-"));
  EXPECT_EQ(answer["usage"], (json{{"prompt_tokens", 5},
                                   {"completion_tokens", 12},
                                   {"total_tokens", 17},
                                   {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
  EXPECT_EQ(complete({{"prompt", "The l"}, {"temperature", 0}})["usage"]["completion_tokens"], 16) << "the default";
}

TEST_F(Completions, TellLogProbabilitiesOfAnEchoedPrompt) {
  const std::string prompt = "a caf\xC3\xA9 is";
  const json choice = complete({{"prompt", prompt}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 3}})["choices"][0];
  EXPECT_EQ(choice["text"], prompt);
  EXPECT_EQ(choice["finish_reason"], "length");
  const json& told = choice["logprobs"];
  ASSERT_EQ(told["tokens"].size(), prompt.size());
  EXPECT_TRUE(told["token_logprobs"][0].is_null());
  EXPECT_TRUE(told["top_logprobs"][0].is_null());
  EXPECT_EQ(told["tokens"][0], "a");
  EXPECT_EQ(told["tokens"][5], "bytes:\\xc3");
  EXPECT_EQ(told["text_offset"], json({0, 1, 2, 3, 4, 5, 5, 6, 7, 8}));
  const auto expected = log_probabilities(prompt);
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    std::vector<double> row = expected[i - 1];
    const double log_p = row[static_cast<unsigned char>(prompt[i])];
    EXPECT_NEAR(told["token_logprobs"][i].get<double>(), log_p, 1e-4) << i;
    std::sort(row.rbegin(), row.rend());
    std::vector<double> top;
    for (const auto& item : told["top_logprobs"][i].items()) {
      top.push_back(item.value().get<double>());
    }
    std::sort(top.rbegin(), top.rend());
    ASSERT_GE(top.size(), 3U);
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(top[k], row[k], 1e-4) << i;
    }
    EXPECT_LE(top.size(), 4U) << "and the token itself";
    EXPECT_EQ(told["top_logprobs"][i][told["tokens"][i].get<std::string>()], told["token_logprobs"][i]);
  }
}

TEST_F(Completions, OfAStreamAreThoseOfTheWhole) {
  json asked = {{"prompt", json::array({"a caf", "The "})},
                {"max_tokens", 20},
                {"temperature", 1.5},
                {"seed", 5},
                {"n", 2},
                {"logprobs", 2},
                {"echo", true}};
  const json whole = complete(asked);
  ASSERT_EQ(whole["choices"].size(), 4U);
  asked["stream"] = true;
  asked["stream_options"] = {{"include_usage", true}};
  const Reply reply = post(asked.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(reply.head, HasSubstr("text/event-stream"));
  json choices = json::array();
  for (std::size_t i = 0; i < 4; ++i) {
    choices.push_back({{"text", ""}, {"index", i}, {"logprobs", json::object()}, {"finish_reason", nullptr}});
  }
  json usage;
  std::string last;
  int events = 0;
  for (std::size_t at = 0, end; (end = reply.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    last = reply.body.substr(at, end - at);
    const json event = json::parse(last.substr(6), nullptr, false);
    if (!event.is_object()) {
      continue;
    }
    ++events;
    usage = event["usage"];
    for (const json& part : event["choices"]) {
      json& choice = choices[part["index"].get<std::size_t>()];
      choice["text"] = choice["text"].get<std::string>() + part["text"].get<std::string>();
      choice["finish_reason"] = part["finish_reason"];
      for (const auto& item : part["logprobs"].items()) {
        json& list = choice["logprobs"][item.key()];
        list = list.is_null() ? json::array() : list;
        list.insert(list.end(), item.value().begin(), item.value().end());
      }
    }
  }
  EXPECT_EQ(choices, whole["choices"]);
  EXPECT_EQ(usage, whole["usage"]);
  EXPECT_EQ(last, "data: [DONE]");
  EXPECT_GT(events, 20) << "as they come";
}

TEST_F(Completions, TakePromptsInEveryForm) {
  const json base = {{"max_tokens", 8}, {"temperature", 0}};
  const auto with = [&](const json& prompt) {
    json asked = base;
    asked["prompt"] = prompt;
    std::vector<std::string> texts;
    const json answer = complete(asked);
    for (const json& choice : answer["choices"]) {
      texts.push_back(choice["text"].get<std::string>());
    }
    return texts;
  };
  const std::string one = with("The ").at(0), other = with("dog").at(0);
  EXPECT_NE(one, other);
  EXPECT_THAT(with(json::array({"The ", "dog"})), testing::ElementsAre(one, other));
  EXPECT_THAT(with(json::array({84, 104, 101, 32})), testing::ElementsAre(one));
  EXPECT_THAT(with(json::parse("[[84,104,101,32],[100,111,103]]")), testing::ElementsAre(one, other));
}

TEST_F(Completions, FollowTheirSeedAlone) {
  json asked = {{"prompt", "The "}, {"max_tokens", 24}, {"temperature", 1.2}, {"seed", 11}, {"n", 3}};
  const json choices = complete(asked)["choices"];
  EXPECT_EQ(choices, complete(asked)["choices"]);
  EXPECT_NE(choices[0]["text"], choices[1]["text"]);
  asked["n"] = 1;
  EXPECT_EQ(complete(asked)["choices"][0], choices[0]);
  asked["seed"] = 12;
  EXPECT_NE(json(text(asked)), choices[0]["text"]);
  const json unseeded = {{"prompt", "The "}, {"max_tokens", 24}, {"temperature", 1.5}};
  EXPECT_NE(text(unseeded), text(unseeded));
  const std::string greedy = text({{"prompt", "The "}, {"temperature", 0}});
  EXPECT_EQ(text({{"prompt", "The "}, {"temperature", 5}, {"top_k", 1}}), greedy);
  EXPECT_EQ(text({{"prompt", "The "}, {"temperature", 5}, {"top_p", 1e-9}}), greedy);
  EXPECT_EQ(text({{"prompt", "The "}, {"temperature", 5}, {"min_p", 1}}), greedy);
}

TEST_F(Completions, EndAtAStopText) {
  const json plain = {{"prompt", "The "}, {"max_tokens", 40}, {"temperature", 0}};
  const std::string whole = text(plain), stop = whole.substr(17, 3);
  const auto ended = [&](const json& stops, bool stream) {
    json asked = plain;
    asked["stop"] = stops;
    asked["stream"] = stream;
    return post(asked.dump());
  };
  const json choice = ended(stop, false).json()["choices"][0];
  EXPECT_EQ(choice["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(ended({"@@@@", stop}, false).json()["choices"][0], choice);
  EXPECT_THAT(ended("@@@@", true).body, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(ended("@@@@", false).json()["choices"][0]["text"], whole);
}

TEST_F(Completions, EndAtAStopToken) {
  const json plain = {{"prompt", "The "}, {"max_tokens", 40}, {"temperature", 0}};
  const std::string whole = text(plain);
  json asked = plain;
  asked["stop_token_ids"] = {0, static_cast<unsigned char>(whole[5])};
  const json choice = complete(asked)["choices"][0];
  EXPECT_EQ(choice["text"], whole.substr(0, whole.find(whole[5])));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(Completions, ArePenalisedAndBiased) {
  const json asked = {{"prompt", "The lazy"}, {"max_tokens", 40}, {"temperature", 0}};
  const auto with = [&](const json& more) {
    json all = asked;
    all.update(more);
    return text(all);
  };
  const std::string plain = with(json::object());
  // As clients say "no penalty", "all tokens".
  EXPECT_EQ(plain, with({{"presence_penalty", 0},
                         {"frequency_penalty", 0.0},
                         {"repetition_penalty", 1.0},
                         {"top_k", -1},
                         {"min_p", 0},
                         {"logit_bias", json::object()},
                         {"ignore_eos", false},
                         {"min_tokens", 0}}));
  const auto kinds = [](const std::string& of) { return std::set<char>(of.begin(), of.end()).size(); };
  EXPECT_GT(kinds(with({{"presence_penalty", 2}, {"frequency_penalty", 2}})), kinds(plain));
  EXPECT_GT(kinds(with({{"repetition_penalty", 5}})), kinds(plain));
  EXPECT_EQ(with({{"logit_bias", {{"122", 100}}}}), std::string(40, 'z'));
  EXPECT_EQ(with({{"logit_bias", {{std::to_string(plain[0]), -100}}}}).find(plain[0]), std::string::npos);
  // Nothing ends an answer before min_tokens: no token that would, and no text in what comes before.
  const std::string stop = plain.substr(2, 2);
  EXPECT_EQ(with({{"stop", stop}}), plain.substr(0, plain.find(stop)));
  const std::string later = with({{"stop", stop}, {"min_tokens", 12}});
  EXPECT_EQ(later.substr(0, 12), plain.substr(0, 12));
  const json ids = {static_cast<int>(plain[1])};
  EXPECT_EQ(with({{"stop_token_ids", ids}}), plain.substr(0, 1));
  const json whole = complete(
      {{"prompt", "The lazy"}, {"max_tokens", 40}, {"temperature", 0}, {"stop_token_ids", ids}, {"min_tokens", 12}});
  EXPECT_GE(whole["usage"]["completion_tokens"], 12);
  EXPECT_EQ(whole["choices"][0]["text"].get<std::string>().substr(0, 12).find(plain[1]), std::string::npos);
}

TEST_F(Completions, AreTheSameBesideFifteenOthers) {
  const auto asked = [](int i) {
    return json{{"prompt", std::string("The lazy dog").substr(0, static_cast<std::size_t>(1 + i % 12))},
                {"max_tokens", 30 + 3 * i},
                {"temperature", 0.8},
                {"seed", i},
                {"echo", true},
                {"logprobs", 1},
                {"presence_penalty", 0.1 * (i % 3)},
                {"frequency_penalty", 0.2 * (i % 2)},
                {"repetition_penalty", 1 + 0.1 * (i % 4)},
                {"logit_bias", {{std::to_string('a' + i), i % 5}}},
                {"stop_token_ids", {' '}},
                {"min_tokens", i}};
  };
  std::vector<json> alone, together(16);
  for (int i = 0; i < 16; ++i) {
    alone.push_back(complete(asked(i))["choices"]);
  }
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] { together[static_cast<std::size_t>(i)] = complete(asked(i))["choices"]; });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(alone, together);
}

TEST_F(Completions, GoNoFurtherThanTheContext) {
  json asked = {{"prompt", std::string(4090, 'a')}, {"max_tokens", 7}, {"temperature", 0}};
  const Reply refused = post(asked.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["code"], "context_length_exceeded");
  asked.erase("max_tokens");
  EXPECT_EQ(complete(asked)["usage"]["completion_tokens"], 6) << "what is left";
}

}  // namespace
}  // namespace orthant::serve_test
