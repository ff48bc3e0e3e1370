// ApiError: a request that is answered with an error, in the words of the interface that clients speak.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace orthant {

class ApiError : public std::runtime_error {
 public:
  // status: of HTTP. param: the field that is wrong; empty: none.
  ApiError(int status, std::string message, std::string param = "", std::string code = "")
      : std::runtime_error(std::move(message)), status_(status), param_(std::move(param)), code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

// Throws a 400 about a field.
template <class... Args>
[[noreturn]] void refuse_field(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), param);
}

// {"error": {"message", "type", "param", "code"}}, always UTF-8, and no longer than an answer to a mistake should be.
std::string error_body(const ApiError& error);

// What somebody sent, short enough for a message.
std::string clipped(const std::string& text);

}  // namespace orthant
