#include "plugins/tokenizer/chat/conversation.h"

#include <orthant/error.h>

#include <utility>

#include "plugins/tokenizer/chat/read_row.h"
#include "plugins/tokenizer/chat/row_keys.h"

namespace orthant {
namespace {

// Of the three ways to say a conversation, by the key that tells them apart. Empty: none.
std::string form_of(const Json& row) {
  for (const char* key : {"messages", "conversations", "conversation"}) {
    if (has(row, key)) {
      return key;
    }
  }
  return has(row, "prompt") == has(row, "instruction") ? "" : has(row, "prompt") ? "prompt" : "instruction";
}

[[noreturn]] void refuse_form(const Json& row) {
  constexpr const char* expected =
      "expected an object with one of \"messages\" (or \"conversations\"), \"prompt\" (and \"completion\") or "
      "\"instruction\" (and \"output\")";
  if (has(row, "chosen") && has(row, "rejected")) {
    throw ConfigError(fmt::format("{}; this is a pair of answers: write data.source = \"pairs\"", expected));
  }
  throw ConfigError(fmt::format("{}, found {}", expected, keys_of(row)));
}

// An answer that somebody has marked as bad (KTO's rows) is not to be learnt.
void refuse_undesired(const Json& row) {
  if (const auto label = row.find("label"); label != row.end() && *label == false) {
    throw ConfigError(
        "\"label\" is false: the answer is one that should not be given, and it would be learnt; leave the "
        "row out");
  }
}

}  // namespace

Conversation read_conversation(std::string_view text) {
  const Json row = read_row(text);
  const std::string form = row.is_object() ? form_of(row) : "";
  if (form.empty()) {
    refuse_form(row);
  }
  if (form == "prompt" && !has(row, "completion") && has(row, "chosen")) {
    refuse_form(row);
  }
  check_row_keys(row);
  Conversation conversation;
  if (form == "prompt") {
    conversation = prompt_of(row);
    for (ChatMessage& message : conversation) {
      message.train = false;
    }
    put_history(conversation, row);
    const Conversation answer = part_of(row, "completion", ChatRole::assistant);
    conversation.insert(conversation.end(), answer.begin(), answer.end());
    refuse_undesired(row);
  } else if (form == "instruction") {
    conversation = prompt_of(row);
    put_history(conversation, row);
    conversation.push_back({ChatRole::assistant, read_text(row, "output")});
  } else {
    refuse_history(row);
    conversation = read_messages(row[form], form.c_str());
  }
  put_system(conversation, row);
  if (read_train(row, ChatRole::assistant, "the row: ") == false) {
    for (ChatMessage& message : conversation) {
      message.train = false;
    }
  }
  return conversation;
}

}  // namespace orthant
