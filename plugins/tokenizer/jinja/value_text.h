// Values as texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plugins/tokenizer/jinja/run.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

// As Python's str: of none "None", of a list what repr makes of its items. Nothing for what is undefined.
std::string to_text(Run& run, const Value& value);
// As Python's repr: texts in quotes.
std::string to_repr(Run& run, const Value& value);

struct JsonForm {
  std::optional<std::int64_t> indent = {};  // none: all in one line
  bool ascii = false;                       // others as \uXXXX
  bool sorted = false;                      // by keys
  std::string between = ", ", behind_key = ": ";
};
// As Python's json.dumps. Errors: TemplateError for what JSON cannot say.
std::string to_json(Run& run, const Value& value, const JsonForm& form);

// &, <, >, ' and " as HTML writes them.
std::string escaped(std::string_view text);

}  // namespace orthant::jinja
