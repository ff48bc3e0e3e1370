// TemplateEncoder: rows of conversations as coded tokens (chat_template.h), by the template that the model brings.
//
//   {"messages": [...], "tools": [...], "documents": [...], "chat_template_kwargs": {...}}
//
// What is learnt: what stands in {% generation %} where the template says so. Otherwise a message of the assistant is
// what its text adds to that of the messages before it with the beginning of an answer, up to an end of text.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/tokenizer/model_template.h"
#include "plugins/tokenizer/chat/template_row.h"

namespace orthant {

// Thread safety: none.
class TemplateEncoder final : public Encoder {
 public:
  // REQUIRES: the tokenizer outlives this.
  TemplateEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ModelTemplate> chat);
  // Errors: ConfigError for a row that is none, for what the template would not see or refuses, and where the text of
  // an answer is no part of the conversation's, so that nobody can say what is to be learnt.
  void encode(std::string_view row, std::vector<std::int32_t>& coded) override;
  void encode(const TemplateRow& row, std::vector<std::int32_t>& coded);

 private:
  struct Span {
    std::size_t begin, end;  // bytes of the text
  };
  std::vector<Span> answers(const TemplateInput& input, const std::vector<bool>& learnt, const RenderedTemplate& whole);
  std::vector<std::int32_t> ids(std::string_view text);

  const Tokenizer& tokenizer_;
  std::shared_ptr<const ModelTemplate> chat_;
};

}  // namespace orthant
