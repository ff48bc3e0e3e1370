#include "plugins/tokenizer/chat/read_row.h"

#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <span>
#include <utility>

namespace orthant {

Json read_row(std::string_view row) {
  constexpr std::size_t most = std::size_t{32}
                               << 20;  // millions of tokens; what is made of a row is many times its size
  if (row.size() > most) {
    throw ConfigError(fmt::format("the row has {} bytes; a conversation may have {}: is an end of a line missing?",
                                  row.size(), most));
  }
  try {
    return parse_json(std::as_bytes(std::span(row)), "the row");
  } catch (const Error& error) {
    const std::size_t end = row.find_last_not_of(" \t\r\n");
    const bool opens = end != std::string_view::npos && (row[end] == '{' || row[end] == ',');
    throw ConfigError(fmt::format(
        "{}{}", error.what(), opens ? "; a row is one line, or an element of one array: `jq -c .` writes it so" : ""));
  }
}

bool has(const Json& row, const char* key) {
  const auto found = row.find(key);
  return row.is_object() && found != row.end() && !found->is_null();
}

std::string keys_of(const Json& row) {
  if (!row.is_object() || row.empty()) {
    return row.is_object() ? "an empty one" : row.type_name();
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) {
    keys.push_back(fmt::format("\"{}\"", key));
  }
  constexpr std::size_t most = 12;
  keys.resize(std::min(most, keys.size()));
  return fmt::format("{}", fmt::join(keys, ", "));
}

Conversation part_of(const Json& row, const char* key, ChatRole role) {
  const auto found = row.find(key);
  if (found != row.end() && found->is_string()) {
    return {{role, found->get<std::string>()}};
  }
  if (found != row.end() && found->is_array()) {
    return read_messages(*found, key);
  }
  if (found != row.end() && found->is_object()) {
    return read_messages(Json::array({*found}), key);
  }
  throw ConfigError(fmt::format("expected a text or a list of messages under \"{}\", found {}", key,
                                found == row.end() ? "none" : found->type_name()));
}

Conversation prompt_of(const Json& row) {
  if (has(row, "prompt")) {
    return part_of(row, "prompt", ChatRole::user);
  }
  std::string asked = read_text(row, "instruction");
  if (const std::string input = has(row, "input") ? read_text(row, "input") : ""; !input.empty()) {
    asked += "\n\n" + input;
  }
  return {{ChatRole::user, std::move(asked)}};
}

void put_history(Conversation& conversation, const Json& row) {
  if (!has(row, "history") || row["history"].empty()) {
    return;
  }
  if (has(row, "prompt") && !row["prompt"].is_string()) {
    return refuse_history(row);
  }
  Conversation before;
  for (const Json& turn : row["history"]) {
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
      throw ConfigError(fmt::format("expected a question and an answer in each element of \"history\", found {}",
                                    turn.dump().substr(0, 60)));
    }
    before.push_back({ChatRole::user, turn[0].get<std::string>()});
    before.push_back({ChatRole::assistant, turn[1].get<std::string>()});
  }
  conversation.insert(conversation.begin(), before.begin(), before.end());
}

void refuse_history(const Json& row) {
  if (has(row, "history") && !row["history"].empty()) {
    throw ConfigError("\"history\" stands beside messages, which say all that was said; write it into them");
  }
}

void put_system(Conversation& conversation, const Json& row) {
  for (const char* key : {"system", "system_prompt"}) {
    const std::string text = has(row, key) ? read_text(row, key) : "";
    if (text.empty()) {
      continue;
    }
    if (conversation.front().role != ChatRole::system) {
      conversation.insert(conversation.begin(), {ChatRole::system, text});
    } else if (conversation.front().text != text) {
      throw ConfigError(
          fmt::format("\"{}\" and the system message that the conversation begins with are two texts; "
                      "leave one out",
                      key));
    }
  }
}

}  // namespace orthant
