// A chat template of ours as the Jinja that transformers' apply_chat_template reads.
#pragma once

#include <string>

#include "plugins/tokenizer/chat/chat_template.h"

namespace orthant {

// It renders a conversation as the text that ChatEncoder encodes, and with add_generation_prompt what stands before an
// answer. What ChatEncoder refuses it refuses by raise_exception, but for names of special tokens in messages.
std::string jinja_of(const ChatTemplate& chat);

}  // namespace orthant
