// Rows of conversations and of pairs of answers, as the template that a model brings is given them.
//
//   {"messages": MESSAGES, "tools": [...], "documents": [...], "chat_template_kwargs": {...}}
//   {"prompt": TEXT | MESSAGES, "chosen": ANSWER, "rejected": ANSWER, "tools": ...}    ANSWER: TEXT | MESSAGES | a
//   message
#pragma once

#include <string_view>
#include <vector>

#include "core/tokenizer/model_template.h"
#include "plugins/tokenizer/chat/pair_prompt.h"

namespace orthant {

struct TemplateRow {
  TemplateInput input;
  std::vector<bool> learnt;  // of each message
};

// Errors: ConfigError for a row that is none, and for what the template would not see.
TemplateRow read_template_row(std::string_view row, const ModelTemplate& chat);

// The chosen and the rejected conversation. Their prompt is placed as read_pair places it, and is not learnt.
// Errors: as above, and those of place_prompt.
struct TemplateRows {
  TemplateRow chosen, rejected;
};
TemplateRows read_template_pair(std::string_view row, const ModelTemplate& chat);

}  // namespace orthant
