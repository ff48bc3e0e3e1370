// read_pair: where the prompt of two answers ends.
#include <orthant/error.h>

#include <string_view>
#include <utility>

#include "plugins/tokenizer/chat/conversation.h"
#include "plugins/tokenizer/chat/read_row.h"
#include "plugins/tokenizer/chat/row_keys.h"

namespace orthant {

bool same_message(const ChatMessage& a, const ChatMessage& b) {
  return a.role == b.role && a.text == b.text && a.train == b.train;
}
bool is_answer(const ChatMessage& message) {
  return message.role == ChatRole::assistant;
}
bool asks(const ChatMessage& message) {
  return message.role == ChatRole::user;
}
const std::string& text_in(const ChatMessage& message) {
  return message.text;
}
bool learnt(const ChatMessage& message) {
  return message.learnt();
}

namespace {

// What asks of a row without "prompt": nothing where the answers have it in them.
Conversation other_prompt(const Json& row, bool asked) {
  if (has(row, "instruction")) {
    Conversation prompt = prompt_of(row);
    put_history(prompt, row);
    return prompt;
  }
  for (const char* key : {"messages", "conversations", "conversation"}) {
    if (!asked && has(row, key)) {
      return read_messages(row[key], key);
    }
  }
  return {};
}

}  // namespace

AnswerPair read_pair(std::string_view text) {
  const Json row = read_row(text);
  if (!row.is_object() || !row.contains("chosen") || !row.contains("rejected")) {
    throw ConfigError(
        fmt::format("expected an object with \"prompt\", \"chosen\" and \"rejected\", found {}", keys_of(row)));
  }
  check_row_keys(row);
  if (read_train(row, ChatRole::assistant, "the row: ") == false) {
    throw ConfigError("the row says that it is not learnt, and a pair is compared or not there; leave the row out");
  }
  AnswerPair pair{part_of(row, "chosen", ChatRole::assistant), part_of(row, "rejected", ChatRole::assistant), 0};
  const bool both = pair_prompt::has_prompt(pair.chosen) && pair_prompt::has_prompt(pair.rejected);
  Conversation prompt;
  if (has(row, "prompt")) {
    prompt = prompt_of(row);
    put_history(prompt, row);
  } else {
    prompt = other_prompt(row, both);
  }
  const bool by_itself = prompt.size() == 1 && !(has(row, "prompt") && !row["prompt"].is_string());
  place_prompt(prompt, by_itself, row["chosen"].is_string() || row["rejected"].is_string(), pair);
  for (Conversation* of : {&pair.chosen, &pair.rejected}) {
    const std::size_t before = of->size();
    put_system(*of, row);
    pair.given += of == &pair.chosen ? of->size() - before : 0;
  }
  pair_prompt::require_answers(pair);
  return pair;
}

}  // namespace orthant
