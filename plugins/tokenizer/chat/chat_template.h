// Chat templates: the texts around the messages of a conversation, and which of its tokens are learnt.
//
// docs/guides/data.md states each in full, and which published models use it. The Jinja that a model
// brings: model_template.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tokenizer/special_texts.h"
#include "core/tokenizer/tokenizer.h"
#include "plugins/tokenizer/chat/conversation.h"

namespace orthant {

struct ChatTemplate {
  // Around a message: `before` and `after` are given, `begin`, the message and `end` are learnt if it is an answer.
  struct Turn {
    std::string before, begin, end, after;
  };
  std::string name;
  std::vector<std::string> special = {};  // texts in it that must be single tokens
  std::string begin = {};                 // of the conversation
  std::array<Turn, 3> turns = {};         // by ChatRole
  std::string user_after_system = {};     // in place of a user's `before`, where `alternates`
  bool trims = false;                     // spaces around a message are left out
  bool alternates = false;                // at most a system message, then user and assistant in turns
};

// name: of a built-in one, or a file that ends in .toml (chat_template_file.h). Errors: ConfigError for a name that is
// not known, with those that are, and for what is wrong with the file.
std::shared_ptr<const ChatTemplate> chat_template(const std::string& name);

// Of all that tokens follow from.
std::uint64_t hash_of(const ChatTemplate& chat);

// A conversation as ids, where each says whether it is learnt (ChatMessage::learnt): 2 * id + 1 for a token of an
// answer, 2 * id for others.
//
// A conversation is encoded from special token to special token, each text together with the special token before it,
// so that ids are those of the whole text. Where an answer begins or ends within such a text, and the ids of what
// stands before are not the beginning of the ids of all, the parts are encoded each by itself: no token is half an
// answer.
class ChatEncoder {
 public:
  // REQUIRES: the tokenizer outlives this. Errors: ConfigError for a special token that is no token of its own.
  ChatEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat);
  // Appends. Answers before message `given` are not learnt. Errors: ConfigError for messages in an order that the
  // template does not have, and for a message with the text of one of the template's special tokens in it.
  void encode(const Conversation& conversation, std::vector<std::int32_t>& coded, std::size_t given = 0);

 private:
  struct Part {
    std::string text;
    bool answer;
  };
  std::vector<Part> parts_of(const Conversation& conversation, std::size_t given) const;
  void check(const Conversation& conversation) const;
  void put_special(std::string_view special, bool answer, std::vector<std::int32_t>& coded) const;
  void encode_text(std::string_view special, const std::vector<Part>& parts, std::vector<std::int32_t>& coded);

  const Tokenizer& tokenizer_;
  std::shared_ptr<const ChatTemplate> chat_;
  SpecialTexts special_;
};

}  // namespace orthant
