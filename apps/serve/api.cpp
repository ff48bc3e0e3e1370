#include "apps/serve/api.h"

#include <chrono>
#include <string_view>

#include "apps/serve/api_error.h"
#include "apps/serve/chat_request.h"
#include "apps/serve/completion.h"

namespace orthant {
namespace {

using namespace std::chrono_literals;

// How long a thread waits for the model before it looks whether its client is still there.
constexpr auto patience = 200ms;

constexpr std::string_view completions = "/v1/completions", chats = "/v1/chat/completions", models = "/v1/models",
                           health = "/health", metrics = "/metrics";

// In a time that says nothing about the secret.
bool same_secret(const std::string& given, const std::string& secret) {
  unsigned different = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    different |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return different == 0;
}

std::int64_t now() {
  return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
}

ApiResponse json_response(const OrderedJson& json) {
  return {.status = 200, .headers = {}, .body = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

// Clients send "application/json; charset=utf-8" too.
bool is_json(const std::string& content_type) {
  const std::string type = content_type.substr(0, content_type.find(';'));
  return type == "application/json" || type == "application/json ";
}

}  // namespace

Api::Api(ModelLoop& model, const Tokenizer& tokenizer, CompletionLimits limits, std::string token)
    : model_(model), tokenizer_(tokenizer), limits_(std::move(limits)), token_(std::move(token)), started_(now()) {}

ApiResponse Api::error(const ApiError& error) {
  ApiResponse response{.status = error.status(), .headers = {}, .body = error_body(error)};
  if (error.status() == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  } else if (error.status() == 503) {
    response.headers.emplace_back("Retry-After", "1");
  }
  return response;
}

ApiResponse Api::respond(const ApiRequest& request) {
  try {
    check(request);
    return route(request);
  } catch (const ApiError& refused) {
    return error(refused);
  } catch (const std::exception& failed) {
    return error({500, failed.what()});
  }
}

void Api::check_token(const std::string& authorization) const {
  constexpr std::string_view scheme = "Bearer ";
  if (token_.empty()) {
    return;
  }
  if (!authorization.starts_with(scheme)) {
    throw ApiError(401,
                   "this server wants a token: send 'Authorization: Bearer TOKEN' (an API key, in a client's words)",
                   "", "missing_token");
  }
  if (!same_secret(authorization.substr(scheme.size()), token_)) {
    throw ApiError(401, "the token is not this server's", "", "invalid_token");
  }
}

// Path, method, token and type of the body.
void Api::check(const ApiRequest& request) const {
  const std::string& path = request.path;
  if (path != health) {
    check_token(request.authorization);
  }
  const bool asks = path == completions || path == chats;
  if (!asks && path != health && path != metrics && path != models && !path.starts_with(std::string(models) + "/")) {
    throw ApiError(404, fmt::format("there is no '{}' here, but {}, {}, {}, {} and {}", clipped(path), completions,
                                    chats, models, metrics, health));
  }
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (asks ? request.method != "POST" : !reads) {
    throw ApiError(405,
                   fmt::format("{} of {}: expected {}", clipped(request.method), clipped(path), asks ? "POST" : "GET"));
  }
  if (asks && !is_json(request.content_type)) {
    throw ApiError(
        415, fmt::format("the body's Content-Type is '{}': expected application/json", clipped(request.content_type)));
  }
}

ApiResponse Api::route(const ApiRequest& request) {
  const OrderedJson model = {
      {"id", limits_.model}, {"object", "model"}, {"created", started_}, {"owned_by", "orthant"}};
  if (request.path == health) {
    return json_response({{"status", "ok"}});
  }
  if (request.path == metrics) {
    return {.status = 200,
            .headers = {},
            .body = model_.metrics().text(),
            .type = "text/plain; version=0.0.4; charset=utf-8"};
  }
  if (request.path == models) {
    return json_response({{"object", "list"}, {"data", OrderedJson::array({model})}});
  }
  if (request.path == completions || request.path == chats) {
    return complete(request, request.path == chats);
  }
  const std::string name = request.path.substr(models.size() + 1);
  if (name != limits_.model) {
    throw ApiError(404,
                   fmt::format("the model '{}' is not served here; this server has '{}'", clipped(name), limits_.model),
                   "model", "model_not_found");
  }
  return json_response(model);
}

ApiResponse Api::complete(const ApiRequest& request, bool chat) {
  std::unique_lock reading(reading_);
  if (open() >= most_requests) {
    throw ApiError(503, fmt::format("{} completions are being answered already: try again later", most_requests), "",
                   "too_many_requests");
  }
  CompletionRequest read = chat ? read_chat(request.body, limits_) : read_completion(request.body, tokenizer_, limits_);
  const bool streams = read.stream;
  auto completion = std::make_shared<Completion>(std::move(read), model_, tokenizer_, limits_.model, open_);
  reading.unlock();
  // A stream's status is told when its first token is there: until then the model may fail.
  while (streams ? !completion->anything() : !completion->done()) {
    completion->wait(patience);
    if (request.gone()) {
      return error({499, "the client has gone"});
    }
  }
  if (!streams) {
    return {.status = 200, .headers = {}, .body = completion->body()};
  }
  const auto next = [completion, failed = false]() mutable -> std::optional<std::string> {
    try {
      if (failed) {
        return std::nullopt;
      }
      if (!completion->anything()) {
        completion->wait(patience);
      }
      return completion->events();
    } catch (const ApiError& refused) {
      failed = true;
      return "data: " + error_body(refused) + "\n\n";
    } catch (const std::exception& error) {
      failed = true;
      return "data: " + error_body({500, error.what()}) + "\n\n";
    }
  };
  return {.status = 200, .headers = {{"Cache-Control", "no-cache"}}, .body = {}, .next = next};
}

}  // namespace orthant
