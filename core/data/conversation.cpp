#include "core/data/conversation.h"

#include <orthant/error.h>

#include <algorithm>
#include <utility>

#include "core/base/json.h"

namespace orthant {
namespace {

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    throw ConfigError(fmt::format("expected a text under \"{}\", found {}", key,
                                  found == object.end() ? "none" : found->type_name()));
  }
  return found->get<std::string>();
}

ChatRole role_of(const std::string& name) {
  if (name == "system") {
    return ChatRole::system;
  }
  if (name == "user") {
    return ChatRole::user;
  }
  if (name != "assistant") {
    throw ConfigError(fmt::format("the role \"{}\" is not known, expected system, user or assistant", name));
  }
  return ChatRole::assistant;
}

Conversation of_messages(const Json& messages, const char* key) {
  if (!messages.is_array() || messages.empty()) {
    throw ConfigError(fmt::format("expected a list of messages under \"{}\"", key));
  }
  Conversation conversation;
  for (const Json& message : messages) {
    if (!message.is_object()) {
      throw ConfigError(fmt::format("a message is {}, expected an object with role and content", message.type_name()));
    }
    conversation.push_back({role_of(text_of(message, "role")), text_of(message, "content")});
  }
  return conversation;
}

Json parsed(std::string_view line) {
  try {
    return parse_json(std::as_bytes(std::span(line)), "the line");
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

// A text, as one message of `role`, or messages.
Conversation part_of(const Json& pair, const char* key, ChatRole role) {
  if (pair.contains(key) && pair[key].is_array()) {
    return of_messages(pair[key], key);
  }
  if (pair.contains(key) && pair[key].is_string()) {
    return {{role, text_of(pair, key)}};
  }
  throw ConfigError(fmt::format("expected a text or a list of messages under \"{}\", found {}", key,
                                pair.contains(key) ? pair[key].type_name() : "none"));
}

bool same(const ChatMessage& a, const ChatMessage& b) {
  return a.role == b.role && a.text == b.text;
}

}  // namespace

AnswerPair read_pair(std::string_view line) {
  const Json json = parsed(line);
  if (!json.is_object() || !json.contains("chosen") || !json.contains("rejected")) {
    throw ConfigError("expected an object with \"prompt\", \"chosen\" and \"rejected\"");
  }
  AnswerPair pair{part_of(json, "chosen", ChatRole::assistant), part_of(json, "rejected", ChatRole::assistant), 0};
  if (json.contains("prompt")) {
    const Conversation prompt = part_of(json, "prompt", ChatRole::user);
    pair.given = prompt.size();
    pair.chosen.insert(pair.chosen.begin(), prompt.begin(), prompt.end());
    pair.rejected.insert(pair.rejected.begin(), prompt.begin(), prompt.end());
  } else if (json["chosen"].is_string() || json["rejected"].is_string()) {
    throw ConfigError("expected a prompt: only lists of messages may have it in \"chosen\" and \"rejected\"");
  } else {
    const std::size_t most = std::min(pair.chosen.size(), pair.rejected.size()) - 1;  // each has an answer
    while (pair.given < most && same(pair.chosen[pair.given], pair.rejected[pair.given])) {
      ++pair.given;
    }
  }
  for (const auto& [key, of] : {std::pair("chosen", &pair.chosen), std::pair("rejected", &pair.rejected)}) {
    if (std::none_of(of->begin() + static_cast<std::ptrdiff_t>(pair.given), of->end(),
                     [](const ChatMessage& message) { return message.role == ChatRole::assistant; })) {
      throw ConfigError(fmt::format("expected an answer of the assistant under \"{}\"", key));
    }
  }
  return pair;
}

Conversation read_conversation(std::string_view line) {
  const Json json = parsed(line);
  const bool chat = json.is_object() && json.contains("messages");
  const bool pair = !chat && json.is_object() && json.contains("prompt");
  const bool task = !chat && json.is_object() && json.contains("instruction");
  if (chat + pair + task != 1) {
    throw ConfigError(
        "expected an object with one of \"messages\", \"prompt\" (and \"completion\") or \"instruction\" (and "
        "\"output\")");
  }
  if (chat) {
    return of_messages(json["messages"], "messages");
  }
  if (pair) {
    return {{ChatRole::user, text_of(json, "prompt")}, {ChatRole::assistant, text_of(json, "completion")}};
  }
  std::string asked = text_of(json, "instruction");
  if (const std::string input = json.contains("input") ? text_of(json, "input") : ""; !input.empty()) {
    asked += "\n\n" + input;
  }
  return {{ChatRole::user, std::move(asked)}, {ChatRole::assistant, text_of(json, "output")}};
}

}  // namespace orthant
