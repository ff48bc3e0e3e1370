// TemplateError: a template that cannot be read, or cannot be rendered with these values.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "core/tokenizer/model_template.h"

namespace orthant::jinja {

using orthant::TemplateError;

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace orthant::jinja
