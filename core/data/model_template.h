// ModelTemplate: the chat template that a model brings, in Jinja (core/jinja), as transformers' apply_chat_template
// renders it: a run's own, else chat_template.jinja or tokenizer_config.json beside the tokenizer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/ordered_json.h"
#include "core/jinja/template.h"
#include "core/tokenizer/text_rules.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// What a conversation is rendered with. messages: a list of objects. The others: null where there are none.
struct TemplateInput {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = nullptr, documents = nullptr;
  OrderedJson variables = OrderedJson::object();  // more of them, by name
  bool add_generation_prompt = false;
  bool continue_final = false;  // the text ends with the last message's, as if it were not complete
};

// Thread safety: constant.
class ModelTemplate {
 public:
  // Null: the model has none. Errors: ConfigError, naming where it stands, for a template that cannot be read.
  static std::shared_ptr<const ModelTemplate> of(const TextRules& rules, const Tokenizer& tokenizer);

  // Errors: jinja::TemplateError; ConfigError for a message that cannot be continued.
  jinja::Rendered render(const TemplateInput& conversation) const;
  // Whether the template knows of it at all: `name` stands in its source.
  bool mentions(const std::string& name, bool with_tools) const;
  const std::string& where() const { return where_; }

  std::vector<std::int32_t> ends() const { return end_ids(tokenizer_, rules_); }
  std::uint64_t hash() const;  // of all that texts follow from
  // The ids of a rendered text: names of special tokens are the tokens, and nothing is put before them. bos: as
  // TextReader's.
  std::vector<std::int32_t> ids(const std::string& text, bool bos = false) const;

 private:
  struct Variant {
    std::string source;
    jinja::Template parsed;
  };
  ModelTemplate(std::string where, const std::map<std::string, std::string>& sources, const TextRules& rules,
                const Tokenizer& tokenizer);
  const Variant& variant(bool with_tools) const;

  std::string where_;
  std::map<std::string, Variant> variants_;  // "default", "tool_use"; of one template "default" alone
  OrderedJson special_;                      // bos_token and others, as texts
  TextRules rules_;
  const Tokenizer& tokenizer_;
};

}  // namespace orthant
