// The messages of a conversation, as chat files write them.
//
//   {"role": ROLE, "content": TEXT | PARTS, "weight": 0 | 1, "train": true | false}
//   {"from": ROLE, "value": TEXT}                                 ShareGPT
//
// ROLE: system (also developer), user (human) or assistant (gpt, model, chatgpt, bot). PARTS: [{"type": "text", "text":
// TEXT}, ...].
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace orthant {

enum class ChatRole { system, user, assistant };

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string text;
  std::optional<bool> train = {};  // whether it is learnt; nothing: it is where it is an answer
  bool learnt() const { return train.value_or(role == ChatRole::assistant); }
};

using Conversation = std::vector<ChatMessage>;

// The list of messages `list`, which stands under `key`. Errors: ConfigError, for what is none, for another role, for
// content that is no text, and for a key that says something about what is learnt, or about what stands before it, that
// a template does not write (row_keys.h), each with the message's number.
Conversation read_messages(const Json& list, const char* key);

// A text, or parts of type "text". where: "message 2 ", for messages. Errors: ConfigError.
std::string read_text(const Json& object, const char* key, const std::string& where = {});

// What says whether the message is learnt: "weight", "train", "training". Nothing: none of them does. Errors:
// ConfigError for other values, for two that disagree, and for a weight of what is no answer.
std::optional<bool> read_train(const Json& message, ChatRole role, const std::string& where);

}  // namespace orthant
