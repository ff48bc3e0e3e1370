// TemplateError: a template that cannot be read, or cannot be rendered with these values.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace orthant::jinja {

class TemplateError : public std::runtime_error {
 public:
  // line: of the template; 0: not known yet. raised: by raise_exception, in the template's own words.
  explicit TemplateError(const std::string& message, int line = 0, bool raised = false)
      : std::runtime_error(message), line_(line), raised_(raised) {}
  int line() const { return line_; }
  bool raised() const { return raised_; }

 private:
  int line_;
  bool raised_;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace orthant::jinja
