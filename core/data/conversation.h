// Conversation: a line of a chat or instruction file.
//
//   {"messages": [{"role": "system" | "user" | "assistant", "content": TEXT}, ...]}
//   {"prompt": TEXT, "completion": TEXT}
//   {"instruction": TEXT, "input": TEXT, "output": TEXT}     "input" may be missing or empty
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orthant {

enum class ChatRole { system, user, assistant };

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string text;
};

using Conversation = std::vector<ChatMessage>;

// An instruction with an input is one message of the user, with an empty line between them. Other keys of a line are
// left alone. Errors: ConfigError for what is no such object, for a role that is none of the three, and for a content
// that is no text.
Conversation read_conversation(std::string_view line);

}  // namespace orthant
