// Errors: every failure a user can meet carries what was expected, what was found, where, and what to do.
//
// Thread safety: exceptions are values; nothing here is shared.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <orthant/abi/tensors.h>

namespace orthant {

// Exit codes of every orthant program (docs/guides/cluster.md).
enum class ExitCode : int { ok = 0, failure = 1, stopped_resumable = 75, bad_configuration = 78 };

// The base of everything Orthant throws. `code` is what the process should exit with.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string message, ExitCode code = ExitCode::failure)
      : std::runtime_error(std::move(message)), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

// Input that is refused before anything starts.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::string message) : Error(std::move(message), ExitCode::bad_configuration) {}
};

// One setting that does not fit the rest, and which: "batch.micro_batch", "plugins.NAME.key".
class SettingError : public ConfigError {
 public:
  SettingError(std::string setting, std::string message, std::optional<std::size_t> element = std::nullopt)
      : ConfigError(std::move(message)), setting_(std::move(setting)), element_(element) {}
  const std::string& setting() const { return setting_; }
  std::optional<std::size_t> element() const { return element_; }  // of a list, the one that does not fit

 private:
  std::string setting_;
  std::optional<std::size_t> element_;
};

// Throws Error with the formatted message. In one place, so that a check costs its caller little code.
[[noreturn]] void fail_formatted(fmt::string_view format, fmt::format_args args);

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  fail_formatted(format, fmt::make_format_args(args...));
}

// Throws Error when `ok` is false. For conditions that depend on input or on the environment, always on.
template <class... Args>
void require(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) [[unlikely]] {
    fail_formatted(format, fmt::make_format_args(args...));
  }
}

}  // namespace orthant
