// ModelTemplate: the chat template that a model brings, in Jinja, as transformers' apply_chat_template renders it: a
// run's own, else chat_template.jinja or tokenizer_config.json beside the tokenizer. The module "tokenizer" reads it
// (tokenizer_module.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ordered_json.h"
#include "core/tokenizer/text_rules.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// A template that cannot be read, or cannot be rendered with these values.
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

// What a conversation is rendered with. messages: a list of objects. The others: null where there are none.
struct TemplateInput {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = nullptr, documents = nullptr;
  OrderedJson variables = OrderedJson::object();  // more of them, by name
  bool add_generation_prompt = false;
  bool continue_final = false;  // the text ends with the last message's, as if it were not complete
};

struct RenderedTemplate {
  using Span = std::pair<std::size_t, std::size_t>;  // bytes [first, second) of the text
  std::string text;
  std::vector<Span> generated;  // what stood in {% generation %}
};

// Thread safety: constant.
class ModelTemplate {
 public:
  virtual ~ModelTemplate() = default;
  // Null: the model has none. Errors: ConfigError, naming where it stands, for a template that cannot be read; those of
  // tokenizer_module().
  static std::shared_ptr<const ModelTemplate> of(const TextRules& rules, const Tokenizer& tokenizer);

  // Errors: TemplateError; ConfigError for a message that cannot be continued.
  virtual RenderedTemplate render(const TemplateInput& conversation) const = 0;
  // Whether the template knows of it at all: `name` stands in its source.
  virtual bool mentions(const std::string& name, bool with_tools) const = 0;
  virtual const std::string& where() const = 0;

  virtual std::vector<std::int32_t> ends() const = 0;
  virtual std::uint64_t hash() const = 0;  // of all that texts follow from
  // The ids of a rendered text: names of special tokens are the tokens, and nothing is put before them. bos: as
  // TextReader's.
  virtual std::vector<std::int32_t> ids(const std::string& text, bool bos = false) const = 0;
};

}  // namespace orthant
