// Conversation: a line of a chat or instruction file, or of a file of pairs of answers.
//
//   {"messages": [{"role": "system" | "user" | "assistant", "content": TEXT}, ...]}
//   {"prompt": TEXT, "completion": TEXT}
//   {"instruction": TEXT, "input": TEXT, "output": TEXT}     "input" may be missing or empty
//
//   {"prompt": TEXT | MESSAGES, "chosen": TEXT | MESSAGES, "rejected": TEXT | MESSAGES}     pairs
//   {"chosen": MESSAGES, "rejected": MESSAGES}     the prompt is what both begin with
#pragma once

#include <cstddef>

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

// Two conversations of which one is preferred. Their first `given` messages are the same, and are not learnt.
struct AnswerPair {
  Conversation chosen, rejected;
  std::size_t given = 0;
};

// A prompt that is a text is a message of the user, an answer one of the assistant. Errors: ConfigError as above, and
// where nothing of the assistant stands behind the prompt.
AnswerPair read_pair(std::string_view line);

}  // namespace orthant
