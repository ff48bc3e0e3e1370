#include "core/data/conversation.h"

#include <orthant/error.h>

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

Conversation of_messages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    throw ConfigError("expected a list of messages under \"messages\"");
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

}  // namespace

Conversation read_conversation(std::string_view line) {
  Json json;
  try {
    json = parse_json(std::as_bytes(std::span(line)), "the line");
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
  const bool chat = json.is_object() && json.contains("messages");
  const bool pair = !chat && json.is_object() && json.contains("prompt");
  const bool task = !chat && json.is_object() && json.contains("instruction");
  if (chat + pair + task != 1) {
    throw ConfigError(
        "expected an object with one of \"messages\", \"prompt\" (and \"completion\") or \"instruction\" (and "
        "\"output\")");
  }
  if (chat) {
    return of_messages(json["messages"]);
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
