// Where the prompt of two answers stands, whatever a message is: one of the named templates (ChatMessage) or of the
// model's own (TemplateMessage), for which there are the functions same_message, is_answer (of the assistant), asks (of
// the user), text_in and learnt.
#pragma once

#include <orthant/error.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

// Two conversations of which one is preferred. Their first `given` messages are the same, and are not learnt.
template <class Message>
struct PairOf {
  std::vector<Message> chosen, rejected;
  std::size_t given = 0;
};

namespace pair_prompt {

inline std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view blanks = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(blanks);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

template <class Message>
bool has_beginning(const std::vector<Message>& all, const std::vector<Message>& beginning) {
  return beginning.size() <= all.size() && std::equal(beginning.begin(), beginning.end(), all.begin(),
                                                      [](const auto& a, const auto& b) { return same_message(a, b); });
}

// Whether it has a question of its own, so that the prompt is in it.
template <class Message>
bool has_prompt(const std::vector<Message>& answer) {
  return !is_answer(answer.front());
}

// How many messages both begin with; of each the last one is its answer.
template <class Message>
std::size_t common_beginning(const PairOf<Message>& pair) {
  const std::size_t most = std::min(pair.chosen.size(), pair.rejected.size()) - 1;
  std::size_t common = 0;
  while (common < most && same_message(pair.chosen[common], pair.rejected[common])) {
    ++common;
  }
  return common;
}

// Behind what is given.
template <class Message>
void require_answers(const PairOf<Message>& pair) {
  for (const auto& [key, of] : {std::pair("chosen", &pair.chosen), std::pair("rejected", &pair.rejected)}) {
    if (std::none_of(of->begin() + static_cast<std::ptrdiff_t>(pair.given), of->end(),
                     [](const Message& message) { return learnt(message); })) {
      throw ConfigError(fmt::format("expected an answer of the assistant under \"{}\"", key));
    }
  }
}

template <class Message>
void put_before(const std::vector<Message>& prompt, PairOf<Message>& pair) {
  pair.chosen.insert(pair.chosen.begin(), prompt.begin(), prompt.end());
  pair.rejected.insert(pair.rejected.begin(), prompt.begin(), prompt.end());
  pair.given += prompt.size();
}

[[noreturn]] inline void refuse_prompt() {
  throw ConfigError(
      "\"prompt\" is not what \"chosen\" and \"rejected\" both begin with, and they have a question of "
      "their own; leave \"prompt\" out where they say all, or leave out of both what stands before their "
      "answers");
}

// Both are lists that have the prompt in them; `text`: it was a text by itself.
template <class Message>
void place_within(const std::vector<Message>& prompt, bool text, PairOf<Message>& pair) {
  const std::size_t common = common_beginning(pair);
  if (text) {
    const auto end = pair.chosen.begin() + static_cast<std::ptrdiff_t>(common);
    const std::string_view asked = without_blanks(text_in(prompt.back()));
    const bool found = std::any_of(pair.chosen.begin(), end, [&](const Message& message) {
      return asks(message) && without_blanks(text_in(message)) == asked;
    });
    if (!found && !asked.empty()) {
      refuse_prompt();
    }
    pair.given = common;
  } else if (has_beginning(pair.chosen, prompt) && has_beginning(pair.rejected, prompt)) {
    pair.given = std::max(common, prompt.size());
  } else if (asks(prompt.back())) {
    refuse_prompt();
  } else {
    pair.given = common;
    put_before(prompt, pair);
  }
}

}  // namespace pair_prompt

// Puts the prompt before both answers, or finds it there; then `given` says where it ends. prompt: empty where the row
// has none beside the answers. text: it was a text by itself. texts: an answer was one. Errors: ConfigError for a
// prompt that is not what both begin with, none at all, and an answer without one of the assistant.
template <class Message>
void place_prompt(const std::vector<Message>& prompt, bool text, bool texts, PairOf<Message>& pair) {
  using namespace pair_prompt;
  require_answers(pair);
  const bool asked = has_prompt(pair.chosen), also = has_prompt(pair.rejected);
  if (!prompt.empty() && asked && also) {
    place_within(prompt, text, pair);
  } else if (!prompt.empty() && (asked || also)) {
    std::vector<Message>& whole = asked ? pair.chosen : pair.rejected;
    if (!has_beginning(whole, prompt)) {
      refuse_prompt();
    }
    whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
    put_before(prompt, pair);
  } else if (!prompt.empty()) {
    put_before(prompt, pair);
  } else if (texts) {
    throw ConfigError("expected a prompt: only lists of messages may have it in \"chosen\" and \"rejected\"");
  } else {
    pair.given = common_beginning(pair);
  }
}

}  // namespace orthant
