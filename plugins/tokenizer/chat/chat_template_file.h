// A chat template of the user's own, in a TOML file.
//
//   special = ["<s>", "</s>"]   # texts that must be single tokens
//   begin = "<s>"               # of a conversation
//   trims = true                # spaces around messages are left out
//   alternates = true           # at most a system message, then user and assistant in turns
//   user_after_system = ""      # in place of user.before, where a system message stands before it and `alternates`
//   [system]                    # around a message: before, begin, end, after
//   before = "[INST] "
//   [user]
//   [assistant]
//   end = "</s>"                # begin, the message and end are learnt
#pragma once

#include <string>

#include "plugins/tokenizer/chat/chat_template.h"

namespace orthant {

// Keys that are missing are empty, or false. Errors: ConfigError for a file that is missing or no TOML, for a key that
// is not known or of another type, by file, line and column, and for an answer without an end.
ChatTemplate read_chat_template(const std::string& path);

}  // namespace orthant
