// Parts of a row that conversations and pairs of answers have in common. Internal to conversation.cpp and
// answer_pair.cpp.
#pragma once

#include <string>
#include <string_view>

#include "core/base/json.h"
#include "plugins/tokenizer/chat/chat_message.h"

namespace orthant {

// A row as JSON. Errors: ConfigError for what is none, and for a row that is too long.
Json read_row(std::string_view row);

// Whether the key is there, and not null. An array has none.
bool has(const Json& row, const char* key);
// "the keys \"a\", \"b\"", for messages.
std::string keys_of(const Json& row);

// A text, as one message of `role`; messages, or one message.
Conversation part_of(const Json& row, const char* key, ChatRole role);
// What "prompt" says, or else "instruction" and "input". REQUIRES: one of them is there.
Conversation prompt_of(const Json& row);

// "history", before the prompt: a question of the user and an answer of the assistant each. Errors: ConfigError for
// another form, and where the prompt is a list of messages, which has its own.
void put_history(Conversation& conversation, const Json& row);
// Where messages say all.
void refuse_history(const Json& row);
// "system" or "system_prompt", before all. Errors: ConfigError where the conversation begins with another one.
void put_system(Conversation& conversation, const Json& row);

}  // namespace orthant
