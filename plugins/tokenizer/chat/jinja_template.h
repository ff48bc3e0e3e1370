// JinjaTemplate: a model's chat template (core/tokenizer/model_template.h), by the Jinja of plugins/tokenizer/jinja.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tokenizer/model_template.h"
#include "plugins/tokenizer/jinja/template.h"

namespace orthant {

class JinjaTemplate final : public ModelTemplate {
 public:
  // As ModelTemplate::of. REQUIRES: the tokenizer outlives it.
  static std::shared_ptr<const ModelTemplate> of(const TextRules& rules, const Tokenizer& tokenizer);

  RenderedTemplate render(const TemplateInput& conversation) const override;
  bool mentions(const std::string& name, bool with_tools) const override;
  const std::string& where() const override { return where_; }
  std::vector<std::int32_t> ends() const override { return end_ids(tokenizer_, rules_); }
  std::uint64_t hash() const override;
  std::vector<std::int32_t> ids(const std::string& text, bool bos) const override;

 private:
  struct Variant {
    std::string source;
    jinja::Template parsed;
  };
  JinjaTemplate(std::string where, const std::map<std::string, std::string>& sources, const TextRules& rules,
                const Tokenizer& tokenizer);
  const Variant& variant(bool with_tools) const;

  std::string where_;
  std::map<std::string, Variant> variants_;  // "default", "tool_use"; of one template "default" alone
  OrderedJson special_;                      // bos_token and others, as texts
  TextRules rules_;
  const Tokenizer& tokenizer_;
};

}  // namespace orthant
