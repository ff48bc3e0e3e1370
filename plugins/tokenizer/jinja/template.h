// Template: a chat template in Jinja, as the transformers library renders those of published models.
//
// The part of Jinja 3.1 that such templates use, in the environment that transformers makes for them: trim_blocks,
// lstrip_blocks, {% break %} and {% continue %}, {% generation %}, raise_exception, strftime_now, a tojson that keeps
// letters and the order of keys. What is beyond it is refused by name and line when the template is read, or when it
// is met. Rendering is bounded in steps, memory and depth, whatever the template says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "core/tokenizer/model_template.h"
#include "plugins/tokenizer/jinja/template_error.h"
#include "plugins/tokenizer/jinja/value.h"

namespace orthant::jinja {

struct Limits {
  std::int64_t steps = 20'000'000;             // expressions, statements, items and characters that are looked at
  std::int64_t bytes = std::int64_t{1} << 28;  // of all texts and lists that are made, one after the other
};

class Statement;

class Template {
 public:
  // Errors: TemplateError, with its line.
  explicit Template(const std::string& source);
  ~Template();
  Template(Template&&) noexcept;

  // Thread safety: any thread's. Errors: TemplateError, with its line.
  RenderedTemplate render(Dict variables, const Limits& limits = {}) const;

 private:
  std::vector<std::unique_ptr<Statement>> body_;
};

}  // namespace orthant::jinja
