// read_pair: where the prompt of two answers ends.
#include <orthant/error.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/data/conversation.h"
#include "core/data/read_row.h"
#include "core/data/row_keys.h"

namespace orthant {
namespace {

bool same_message(const ChatMessage& a, const ChatMessage& b) {
  return a.role == b.role && a.text == b.text && a.train == b.train;
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view blanks = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(blanks);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

bool has_beginning(const Conversation& all, const Conversation& beginning) {
  return beginning.size() <= all.size() && std::equal(beginning.begin(), beginning.end(), all.begin(), same_message);
}

// Whether it has a question of its own, so that the prompt is in it.
bool has_prompt(const Conversation& answer) {
  return answer.front().role != ChatRole::assistant;
}

// How many messages both begin with; of each the last one is its answer.
std::size_t common_beginning(const AnswerPair& pair) {
  const std::size_t most = std::min(pair.chosen.size(), pair.rejected.size()) - 1;
  std::size_t common = 0;
  while (common < most && same_message(pair.chosen[common], pair.rejected[common])) {
    ++common;
  }
  return common;
}

// Behind what is given.
void require_answers(const AnswerPair& pair) {
  for (const auto& [key, of] : {std::pair("chosen", &pair.chosen), std::pair("rejected", &pair.rejected)}) {
    if (std::none_of(of->begin() + static_cast<std::ptrdiff_t>(pair.given), of->end(),
                     [](const ChatMessage& message) { return message.learnt(); })) {
      throw ConfigError(fmt::format("expected an answer of the assistant under \"{}\"", key));
    }
  }
}

void put_before(const Conversation& prompt, AnswerPair& pair) {
  pair.chosen.insert(pair.chosen.begin(), prompt.begin(), prompt.end());
  pair.rejected.insert(pair.rejected.begin(), prompt.begin(), prompt.end());
  pair.given += prompt.size();
}

[[noreturn]] void refuse_prompt() {
  throw ConfigError(
      "\"prompt\" is not what \"chosen\" and \"rejected\" both begin with, and they have a question of "
      "their own; leave \"prompt\" out where they say all, or leave out of both what stands before their "
      "answers");
}

// Both are lists that have the prompt in them; `text`: it was a text by itself.
void place_prompt(const Conversation& prompt, bool text, AnswerPair& pair) {
  const std::size_t common = common_beginning(pair);
  if (text) {
    const auto end = pair.chosen.begin() + static_cast<std::ptrdiff_t>(common);
    const std::string_view asked = without_blanks(prompt.back().text);
    const bool found = std::any_of(pair.chosen.begin(), end, [&](const ChatMessage& message) {
      return message.role == ChatRole::user && without_blanks(message.text) == asked;
    });
    if (!found && !asked.empty()) {
      refuse_prompt();
    }
    pair.given = common;
  } else if (has_beginning(pair.chosen, prompt) && has_beginning(pair.rejected, prompt)) {
    pair.given = std::max(common, prompt.size());
  } else if (prompt.back().role == ChatRole::user) {
    refuse_prompt();
  } else {
    pair.given = common;
    put_before(prompt, pair);
  }
}

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
  require_answers(pair);
  const bool asked = has_prompt(pair.chosen), both = asked && has_prompt(pair.rejected);
  Conversation prompt;
  if (has(row, "prompt")) {
    prompt = prompt_of(row);
    put_history(prompt, row);
  } else {
    prompt = other_prompt(row, both);
  }
  if (!prompt.empty() && both) {
    place_prompt(prompt, prompt.size() == 1 && !(has(row, "prompt") && !row["prompt"].is_string()), pair);
  } else if (!prompt.empty() && (asked || has_prompt(pair.rejected))) {
    Conversation& whole = asked ? pair.chosen : pair.rejected;
    if (!has_beginning(whole, prompt)) {
      refuse_prompt();
    }
    whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
    put_before(prompt, pair);
  } else if (!prompt.empty()) {
    put_before(prompt, pair);
  } else if (row["chosen"].is_string() || row["rejected"].is_string()) {
    throw ConfigError("expected a prompt: only lists of messages may have it in \"chosen\" and \"rejected\"");
  } else {
    pair.given = common_beginning(pair);
  }
  for (Conversation* of : {&pair.chosen, &pair.rejected}) {
    const std::size_t before = of->size();
    put_system(*of, row);
    pair.given += of == &pair.chosen ? of->size() - before : 0;
  }
  require_answers(pair);
  return pair;
}

}  // namespace orthant
