#include "plugins/tokenizer/chat/template_row.h"

#include <orthant/error.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/json.h"
#include "core/tokenizer/template_messages.h"
#include "plugins/tokenizer/chat/chat_message.h"
#include "plugins/tokenizer/chat/row_keys.h"

namespace orthant {
namespace {

constexpr std::string_view beside_messages[] = {"tools", "documents", "chat_template_kwargs"};

// Keys that no template is given, as row_keys.h has them. Order means nothing there.
void check_others(const OrderedJson& object, std::span<const std::string_view> given, const std::string& where) {
  Json others = Json::object();
  for (const auto& [key, value] : object.items()) {
    const bool beside = where.empty() && std::find(std::begin(beside_messages), std::end(beside_messages), key) !=
                                             std::end(beside_messages);
    if (!beside && std::find(given.begin(), given.end(), key) == given.end()) {
      others[key] = Json::parse(value.dump());
    }
  }
  where.empty() ? check_row_keys(others) : check_message_keys(others, where + ": ");
}

struct TemplateMessage {
  OrderedJson json;
  bool learnt = false;
};

bool same_message(const TemplateMessage& a, const TemplateMessage& b) {
  return a.json == b.json && a.learnt == b.learnt;
}
bool is_answer(const TemplateMessage& message) {
  return message.json["role"] == "assistant";
}
bool asks(const TemplateMessage& message) {
  return message.json["role"] == "user";
}
std::string_view text_in(const TemplateMessage& message) {
  const OrderedJson& content = message.json["content"];
  return content.is_string() ? std::string_view(content.get_ref<const std::string&>()) : std::string_view();
}
bool learnt(const TemplateMessage& message) {
  return message.learnt;
}

TemplateMessage message_of(const OrderedJson& given, const std::string& where) {
  OrderedJson message = OrderedJson::object();
  for (const std::string_view key : message_fields) {
    if (given.is_object() && given.contains(key)) {
      message[std::string(key)] = given[std::string(key)];
    }
  }
  TemplateMessage made{.json = template_message(given.is_object() ? message : given, where)};
  check_others(given, message_fields, where);
  const bool answers = is_answer(made);
  const ChatRole role = answers ? ChatRole::assistant : ChatRole::user;
  made.learnt = read_train(Json::parse(given.dump()), role, where + ": ").value_or(answers) && answers;
  return made;
}

// key: of a row, for messages; empty where its messages alone are the row's.
std::vector<TemplateMessage> messages_of(const OrderedJson& list, const std::string& key) {
  std::vector<TemplateMessage> made;
  for (const OrderedJson& message : list) {
    made.push_back(message_of(message, fmt::format("{}message {}", key.empty() ? "" : key + ", ", made.size() + 1)));
  }
  return made;
}

OrderedJson object_of(std::string_view text) {
  try {
    OrderedJson json = parse_ordered_json(text, "the row");
    return json.is_object() ? json : OrderedJson::object();
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

// What stands beside the messages. given: the keys of these.
TemplateInput input_beside(const OrderedJson& row, std::span<const std::string_view> given, const ModelTemplate& chat) {
  TemplateInput input;
  input.tools = template_tools(row.value("tools", OrderedJson()));
  input.documents = row.value("documents", OrderedJson());
  const OrderedJson more = row.value("chat_template_kwargs", OrderedJson());
  input.variables = more.is_object() ? more : OrderedJson::object();
  check_others(row, given, "");
  const bool tools = !input.tools.is_null();
  for (const char* key : {"tools", "documents"}) {
    const OrderedJson value = row.value(key, OrderedJson());
    if (!value.is_null() && !value.empty() && !chat.mentions(key, tools)) {
      throw ConfigError(
          fmt::format("\"{}\": the model's template ({}) knows of none, and would leave them out", key, chat.where()));
    }
  }
  for (const auto& [name, value] : input.variables.items()) {
    if (!chat.mentions(name, tools)) {
      throw ConfigError(
          fmt::format("\"chat_template_kwargs\": the model's template ({}) does not know '{}'", chat.where(), name));
    }
  }
  return input;
}

// The first `given` are not learnt.
TemplateRow row_of(const TemplateInput& beside, const std::vector<TemplateMessage>& messages, std::size_t given) {
  TemplateRow row{.input = beside, .learnt = {}};
  for (const TemplateMessage& message : messages) {
    row.learnt.push_back(message.learnt && row.learnt.size() >= given);
    row.input.messages.push_back(message.json);
  }
  return row;
}

std::vector<TemplateMessage> part_of(const OrderedJson& row, const char* key, const char* role) {
  const OrderedJson part = row.value(key, OrderedJson());
  if (part.is_string()) {
    return {message_of({{"role", role}, {"content", part}}, key)};
  }
  if (!part.is_object() && (!part.is_array() || part.empty())) {
    throw ConfigError(fmt::format("expected a text or a list of messages under \"{}\", found {}", key,
                                  part.is_null() ? "none" : part.type_name()));
  }
  return messages_of(part.is_object() ? OrderedJson::array({part}) : part, key);
}

}  // namespace

TemplateRow read_template_row(std::string_view text, const ModelTemplate& chat) {
  const OrderedJson row = object_of(text);
  const OrderedJson messages = row.value("messages", OrderedJson());
  if (!messages.is_array() || messages.empty()) {
    throw ConfigError(
        "expected an object with a list of \"messages\", which data.chat_template = \"model\" is read of");
  }
  const std::vector<TemplateMessage> made = messages_of(messages, "");
  constexpr std::string_view given[] = {"messages"};
  return row_of(input_beside(row, given, chat), made, 0);
}

TemplateRows read_template_pair(std::string_view text, const ModelTemplate& chat) {
  const OrderedJson row = object_of(text);
  if (!row.contains("chosen") || !row.contains("rejected")) {
    throw ConfigError(
        "expected an object with \"prompt\", \"chosen\" and \"rejected\", which data.chat_template = \"model\" makes a "
        "pair of");
  }
  // Other forms of a prompt, which read_pair knows.
  for (const char* key : {"instruction", "input", "history", "system", "system_prompt", "messages", "conversations"}) {
    if (const OrderedJson other = row.value(key, OrderedJson()); !other.is_null() && !other.empty()) {
      throw ConfigError(
          fmt::format("\"{}\": with data.chat_template = \"model\" all that stands before the answers is \"prompt\"; "
                      "write it there",
                      key));
    }
  }
  if (read_train(Json::parse(row.dump()), ChatRole::assistant, "the row: ") == false) {
    throw ConfigError("the row says that it is not learnt, and a pair is compared or not there; leave the row out");
  }
  PairOf<TemplateMessage> pair{.chosen = part_of(row, "chosen", "assistant"),
                               .rejected = part_of(row, "rejected", "assistant")};
  const OrderedJson asked = row.value("prompt", OrderedJson());
  const std::vector<TemplateMessage> prompt =
      asked.is_null() ? std::vector<TemplateMessage>() : part_of(row, "prompt", "user");
  place_prompt(prompt, asked.is_string(), row["chosen"].is_string() || row["rejected"].is_string(), pair);
  pair_prompt::require_answers(pair);
  constexpr std::string_view given[] = {"prompt", "chosen", "rejected"};
  const TemplateInput beside = input_beside(row, given, chat);
  return {.chosen = row_of(beside, pair.chosen, pair.given), .rejected = row_of(beside, pair.rejected, pair.given)};
}

}  // namespace orthant
