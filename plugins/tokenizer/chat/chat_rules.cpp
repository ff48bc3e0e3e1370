#include "plugins/tokenizer/chat/chat_rules.h"

#include "plugins/tokenizer/chat/chat_jinja.h"

namespace orthant {
namespace {

// The special token that comes first in `text`; empty: none.
std::string first_special(const ChatTemplate& chat, const std::string& text) {
  std::string found;
  std::size_t first = std::string::npos;
  for (const std::string& special : chat.special) {
    if (const std::size_t at = text.find(special); at < first) {
      first = at;
      found = special;
    }
  }
  return found;
}

std::string without_spaces_around(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? text : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// Every conversation begins with one of these.
bool writes_bos(const ChatTemplate& chat, const std::string& bos) {
  if (!chat.begin.empty()) {
    return chat.begin.starts_with(bos);
  }
  const auto begins = [&](ChatRole role) { return chat.turns[static_cast<std::size_t>(role)].before.starts_with(bos); };
  return begins(ChatRole::system) && begins(ChatRole::user);
}

}  // namespace

TextRules rules_of(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  TextRules rules{.bos = false, .special = chat.special, .chat_template = jinja_of(chat)};
  for (const std::string& special : chat.special) {
    if (tokenizer.special().bos.has_value() && tokenizer.id_of(special) == tokenizer.special().bos) {
      rules.bos = writes_bos(chat, special);
    }
  }
  const std::string& end = chat.turns[static_cast<std::size_t>(ChatRole::assistant)].end;
  if (const std::string special = first_special(chat, end); !special.empty()) {
    rules.end_ids = {*tokenizer.id_of(special)};
  } else {
    rules.end_texts = {without_spaces_around(end)};
  }
  return rules;
}

}  // namespace orthant
