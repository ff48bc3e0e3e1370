// What a chat template says of the texts of a run that is trained by it.
#pragma once

#include "core/tokenizer/text_rules.h"
#include "plugins/tokenizer/chat/chat_template.h"

namespace orthant {

// A text begins with bos where the template's own first text does: ChatEncoder adds none. It ends at the first special
// token of an answer's end, or at the end's text where that has none. REQUIRES: the template fits the tokenizer.
TextRules rules_of(const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace orthant
