// Conversation: a row of a chat or instruction file, or of a file of pairs of answers.
//
//   {"messages": MESSAGES}                                  or "conversations", as ShareGPT calls them
//   {"prompt": TEXT | MESSAGES, "completion": TEXT | MESSAGES}
//   {"instruction": TEXT, "input": TEXT, "output": TEXT}    "input" may be missing, null or empty
//
//   {"prompt": TEXT | MESSAGES, "chosen": ANSWER, "rejected": ANSWER}     pairs; ANSWER: TEXT | MESSAGES | a message
//   {"chosen": MESSAGES, "rejected": MESSAGES}              the prompt is what both begin with
//
// Beside them "system" is a message before all, and "history" are [[TEXT, TEXT], ...], questions and answers before an
// instruction or a prompt that is a text. What a message may hold: chat_message.h.
#pragma once

#include <cstddef>

#include <string>
#include <string_view>

#include "plugins/tokenizer/chat/chat_message.h"
#include "plugins/tokenizer/chat/pair_prompt.h"

namespace orthant {

// An instruction with an input is one message of the user, with an empty line between them. Answers within a prompt are
// given, those of "history" and of "messages" are learnt. Other keys of a row are left alone, but for those that
// check_row_keys refuses. Errors: ConfigError for what is no such object, and as read_messages.
Conversation read_conversation(std::string_view row);

bool same_message(const ChatMessage& a, const ChatMessage& b);
bool is_answer(const ChatMessage& message);
bool asks(const ChatMessage& message);
const std::string& text_in(const ChatMessage& message);
bool learnt(const ChatMessage& message);

using AnswerPair = PairOf<ChatMessage>;

// A prompt that is a text is a message of the user, an answer one of the assistant. Where both lists of messages begin
// with the prompt, it is what they begin with, and stands there once (as TRL's extract_prompt has it); where neither
// does, it stands before them. Errors: ConfigError as above, where a prompt contradicts what the lists begin with, and
// where nothing that is learnt stands behind the prompt.
AnswerPair read_pair(std::string_view row);

}  // namespace orthant
