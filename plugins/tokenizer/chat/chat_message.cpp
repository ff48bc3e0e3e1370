#include "plugins/tokenizer/chat/chat_message.h"

#include <orthant/error.h>

#include <array>
#include <string_view>
#include <utility>

#include "plugins/tokenizer/chat/row_keys.h"

namespace orthant {
namespace {

constexpr std::array<std::pair<std::string_view, ChatRole>, 10> roles = {{{"system", ChatRole::system},
                                                                          {"developer", ChatRole::system},
                                                                          {"user", ChatRole::user},
                                                                          {"human", ChatRole::user},
                                                                          {"assistant", ChatRole::assistant},
                                                                          {"gpt", ChatRole::assistant},
                                                                          {"chatgpt", ChatRole::assistant},
                                                                          {"model", ChatRole::assistant},
                                                                          {"bot", ChatRole::assistant},
                                                                          {"bing", ChatRole::assistant}}};

ChatRole role_of(const std::string& name, const std::string& where) {
  for (const auto& [known, role] : roles) {
    if (known == name) {
      return role;
    }
  }
  throw ConfigError(
      fmt::format("{}the role \"{}\" is not known, expected system, user or assistant (or human and gpt); what tools "
                  "are asked and answer is written by no chat template here",
                  where, name));
}

std::string text_of_parts(const Json& parts, const char* key, const std::string& where) {
  std::string text;
  for (const Json& part : parts) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
      throw ConfigError(fmt::format("{}a part of \"{}\" is {}, expected {{\"type\": \"text\", \"text\": ...}}", where,
                                    key, part.is_object() ? "without a type" : part.type_name()));
    }
    if (*type != "text") {
      throw ConfigError(
          fmt::format("{}a part of \"{}\" is of the type \"{}\", and models of text alone are trained "
                      "here; leave the row out",
                      where, key, type->get<std::string>()));
    }
    text += read_text(part, "text", where);
  }
  return text;
}

ChatMessage read_message(const Json& message, std::size_t number) {
  if (!message.is_object()) {
    throw ConfigError(fmt::format("a message is {}, expected an object with role and content", message.type_name()));
  }
  const std::string where = fmt::format("message {}: ", number);
  const bool share_gpt = message.contains("from") && !message.contains("role");
  check_message_keys(message, where);
  const ChatRole role = role_of(read_text(message, share_gpt ? "from" : "role", where), where);
  const bool valued = message.contains("value") && !message.contains("content");
  return {role, read_text(message, valued ? "value" : "content", where), read_train(message, role, where)};
}

}  // namespace

std::string read_text(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_array()) {
    return text_of_parts(*found, key, where);
  }
  if (found == object.end() || !found->is_string()) {
    throw ConfigError(fmt::format("{}expected a text under \"{}\", found {}", where, key,
                                  found == object.end() ? "none" : found->type_name()));
  }
  return found->get<std::string>();
}

std::optional<bool> read_train(const Json& message, ChatRole role, const std::string& where) {
  std::optional<bool> train;
  const auto say = [&](const char* key, bool value) {
    if (train.value_or(value) != value) {
      throw ConfigError(fmt::format("{}\"{}\" and another key disagree whether it is learnt", where, key));
    }
    train = value;
  };
  if (const auto weight = message.find("weight"); weight != message.end() && !weight->is_null()) {
    if (!weight->is_number() || (*weight != 0 && *weight != 1)) {
      throw ConfigError(
          fmt::format("{}\"weight\" is {}: an answer is learnt or not, write 0 or 1", where, weight->dump()));
    }
    if (*weight == 1 && role != ChatRole::assistant) {
      throw ConfigError(
          fmt::format("{}\"weight\" is 1, and it is no answer of the assistant; write \"train\": true "
                      "where it is to be learnt all the same, or leave the weight out",
                      where));
    }
    say("weight", *weight == 1);
  }
  for (const char* key : {"train", "training"}) {
    if (const auto said = message.find(key); said != message.end() && !said->is_null()) {
      if (!said->is_boolean()) {
        throw ConfigError(fmt::format("{}\"{}\" is {}: write true or false", where, key, said->dump()));
      }
      say(key, said->get<bool>());
    }
  }
  return train;
}

Conversation read_messages(const Json& list, const char* key) {
  if (!list.is_array() || list.empty()) {
    throw ConfigError(fmt::format("expected a list of messages under \"{}\"", key));
  }
  Conversation conversation;
  for (const Json& message : list) {
    conversation.push_back(read_message(message, conversation.size() + 1));
  }
  return conversation;
}

}  // namespace orthant
