// Api: the paths of the server and what they answer, apart from HTTP and sockets.
//
//   GET  /health            {"status": "ok"}, without a token
//   GET  /metrics           for Prometheus
//   GET  /v1/models         the one model
//   GET  /v1/models/NAME
//   POST /v1/completions    OpenAI's legacy completions: api.openai.com/v1/completions
//   POST /v1/chat/completions
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/serve/completion_request.h"
#include "apps/serve/model_loop.h"

namespace orthant {

// Completions that are answered at once, each held by a thread; more are refused with a 503.
constexpr int most_requests = 128;

struct ApiRequest {
  std::string method, path;  // without a query
  std::string authorization, content_type;
  std::string body;
  // The client is not there any more. Called by the thread that calls respond().
  std::function<bool()> gone;
};

struct ApiResponse {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::string type = "application/json";  // of the body
  // In place of a body: server-sent events, as they come. Empty: nothing yet, ask again; nullopt: that was all. Its
  // end frees the places of its answers.
  std::function<std::optional<std::string>()> next = {};
};

class Api {
 public:
  // token: what clients must show; empty: none. The others outlive this.
  Api(ModelLoop& model, const Tokenizer& tokenizer, CompletionLimits limits, std::string token);

  // Waits for the whole answer, but for a stream. Thread safety: any thread's. Never throws.
  ApiResponse respond(const ApiRequest& request);
  static ApiResponse error(const ApiError& error);

  // Answers whose clients have not had them to the end.
  int open() const { return *open_; }

 private:
  void check(const ApiRequest& request) const;
  void check_token(const std::string& authorization) const;
  ApiResponse route(const ApiRequest& request);
  ApiResponse complete(const ApiRequest& request, bool chat);

  ModelLoop& model_;
  const Tokenizer& tokenizer_;
  const CompletionLimits limits_;
  const std::string token_;
  const std::int64_t started_;  // seconds since 1970
  std::mutex reading_;          // of bodies: one at a time, for the memory of what they become
  std::shared_ptr<std::atomic<int>> open_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace orthant
