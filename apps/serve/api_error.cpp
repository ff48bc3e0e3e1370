#include "apps/serve/api_error.h"

#include <nlohmann/json.hpp>

#include "core/base/utf8.h"

namespace orthant {
namespace {

constexpr std::size_t longest_quote = 80, longest_message = 1000;  // bytes

std::string cut(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) {
    return text;
  }
  return text.substr(0, valid_utf8(std::string_view(text).substr(0, bytes))) + "...";
}

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string clipped(const std::string& text) {
  return cut(text, longest_quote);
}

std::string error_body(const ApiError& error) {
  using Ordered = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) { return text.empty() ? Ordered(nullptr) : Ordered(text); };
  const Ordered body = {{"error",
                         {{"message", cut(error.what(), longest_message)},
                          {"type", type_of(error.status())},
                          {"param", or_null(clipped(error.param()))},
                          {"code", or_null(error.code())}}}};
  return body.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

}  // namespace orthant
