#include "plugins/tokenizer/chat/chat_template.h"

#include <fmt/ranges.h>
#include <orthant/error.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "plugins/tokenizer/chat/chat_template_file.h"

namespace orthant {
namespace {

std::vector<ChatTemplate> templates() {
  using Turn = ChatTemplate::Turn;
  const std::vector<ChatTemplate> all = {
      {.name = "chatml",
       .special = {"<|im_start|>", "<|im_end|>"},
       .turns = {Turn{"<|im_start|>system\n", "", "<|im_end|>", "\n"},
                 Turn{"<|im_start|>user\n", "", "<|im_end|>", "\n"},
                 Turn{"<|im_start|>assistant\n", "", "<|im_end|>", "\n"}}},
      {.name = "llama3",
       .special = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       .begin = "<|begin_of_text|>",
       .turns = {Turn{"<|start_header_id|>system<|end_header_id|>\n\n", "", "<|eot_id|>", ""},
                 Turn{"<|start_header_id|>user<|end_header_id|>\n\n", "", "<|eot_id|>", ""},
                 Turn{"<|start_header_id|>assistant<|end_header_id|>\n\n", "", "<|eot_id|>", ""}},
       .trims = true},
      {.name = "llama2",
       .special = {"<s>", "</s>"},
       .turns = {Turn{"<s>[INST] <<SYS>>\n", "", "", "\n<</SYS>>\n\n"}, Turn{"<s>[INST] ", "", "", " [/INST]"},
                 Turn{"", " ", " </s>", ""}},
       .trims = true,
       .alternates = true},
      {.name = "zephyr",
       .special = {"</s>"},
       .turns = {Turn{"<|system|>\n", "", "</s>", "\n"}, Turn{"<|user|>\n", "", "</s>", "\n"},
                 Turn{"<|assistant|>\n", "", "</s>", "\n"}}},
      {.name = "plain",
       .turns = {Turn{"", "", "", "\n\n"}, Turn{"User: ", "", "", "\n\n"}, Turn{"Assistant:", " ", "\n\n", ""}}}};
  return all;
}

std::string trimmed(const std::string& text) {
  constexpr const char* blanks = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(blanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

bool begins_with(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& beginning) {
  return beginning.size() <= ids.size() && std::equal(beginning.begin(), beginning.end(), ids.begin());
}

}  // namespace

std::shared_ptr<const ChatTemplate> chat_template(const std::string& name) {
  if (name.ends_with(".toml")) {
    return std::make_shared<ChatTemplate>(read_chat_template(name));
  }
  std::vector<std::string> names;
  for (const ChatTemplate& each : templates()) {
    if (each.name == name) {
      return std::make_shared<ChatTemplate>(each);
    }
    names.push_back(each.name);
  }
  throw ConfigError(
      fmt::format("data.chat_template: there is no \"{}\"; known are {}, \"model\" (that of the tokenizer), or give a "
                  "file that ends in .toml",
                  name, fmt::join(names, ", ")));
}

std::uint64_t hash_of(const ChatTemplate& chat) {
  std::string all = fmt::format("{}{}{}", chat.trims, chat.alternates, chat.special.size());
  const auto add = [&](const std::string& text) { all += fmt::format("{} {}", text.size(), text); };
  std::for_each(chat.special.begin(), chat.special.end(), add);
  add(chat.begin);
  add(chat.user_after_system);
  for (const ChatTemplate::Turn& turn : chat.turns) {
    add(turn.before);
    add(turn.begin);
    add(turn.end);
    add(turn.after);
  }
  return XXH3_64bits(all.data(), all.size());
}

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat)
    : tokenizer_(tokenizer), chat_(std::move(chat)), special_(tokenizer, chat_->special) {
  for (const std::string& special : chat_->special) {
    if (!tokenizer.id_of(special)) {
      throw ConfigError(fmt::format(
          "data.chat_template: \"{}\" needs the token {}, which '{}' does not have as a token of its own; give "
          "the tokenizer of a model that uses this template, or another template",
          chat_->name, special, tokenizer.name()));
    }
  }
}

void ChatEncoder::check(const Conversation& conversation) const {
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    for (const std::string& special : chat_->special) {
      if (conversation[i].text.find(special) != std::string::npos) {
        throw ConfigError(
            fmt::format("message {} has the text {} in it, which the template \"{}\" sets between messages", i + 1,
                        special, chat_->name));
      }
    }
    const std::size_t turn = i - (conversation[0].role == ChatRole::system ? 1 : 0);
    const bool first_system = i == 0 && conversation[i].role == ChatRole::system;
    const ChatRole expected = turn % 2 == 0 ? ChatRole::user : ChatRole::assistant;
    if (chat_->alternates && !first_system && conversation[i].role != expected) {
      throw ConfigError(
          fmt::format("message {} is not in turn: the template \"{}\" has at most one system message, then user and "
                      "assistant by turns",
                      i + 1, chat_->name));
    }
  }
}

std::vector<ChatEncoder::Part> ChatEncoder::parts_of(const Conversation& conversation, std::size_t given) const {
  std::vector<Part> parts = {{chat_->begin, false}};
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    const ChatMessage& message = conversation[i];
    const ChatTemplate::Turn& turn = chat_->turns[static_cast<std::size_t>(message.role)];
    const bool behind_system = chat_->alternates && i == 1 && conversation[0].role == ChatRole::system;
    const std::string text = chat_->trims ? trimmed(message.text) : message.text;
    parts.push_back({behind_system ? chat_->user_after_system : turn.before, false});
    parts.push_back({turn.begin + text + turn.end, message.learnt() && i >= given});
    parts.push_back({turn.after, false});
  }
  return parts;
}

void ChatEncoder::put_special(std::string_view special, bool answer, std::vector<std::int32_t>& coded) const {
  coded.push_back(2 * *tokenizer_.id_of(special) + (answer ? 1 : 0));
}

void ChatEncoder::encode(const Conversation& conversation, std::vector<std::int32_t>& coded, std::size_t given) {
  check(conversation);
  std::string_view last;    // the special token before `texts`
  std::vector<Part> texts;  // since then
  for (const Part& part : parts_of(conversation, given)) {
    std::size_t begin = 0;
    for (std::size_t at = 0; at <= part.text.size();) {
      const std::string_view special = special_.found(part.text, at);
      if (special.empty() && at < part.text.size()) {
        ++at;
        continue;
      }
      if (at > begin && !texts.empty() && texts.back().answer == part.answer) {
        texts.back().text += part.text.substr(begin, at - begin);
      } else if (at > begin) {
        texts.push_back({part.text.substr(begin, at - begin), part.answer});
      }
      if (special.empty()) {
        break;
      }
      encode_text(last, texts, coded);
      texts.clear();
      put_special(special, part.answer, coded);
      last = special;
      at += special.size();
      begin = at;
    }
  }
  encode_text(last, texts, coded);
}

void ChatEncoder::encode_text(std::string_view special, const std::vector<Part>& parts,
                              std::vector<std::int32_t>& coded) {
  if (parts.empty()) {
    return;
  }
  std::string text;
  std::vector<std::vector<std::int32_t>> until;  // the ids of the first parts, one more each
  for (const Part& part : parts) {
    text += part.text;
    until.push_back(special_.behind(special, text));
  }
  const std::vector<std::int32_t>& all = until.back();
  const bool agree = std::all_of(until.begin(), until.end(), [&](const auto& ids) { return begins_with(all, ids); });
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::vector<std::int32_t> alone =
        agree ? std::vector<std::int32_t>() : special_.behind(i == 0 ? special : std::string_view(), parts[i].text);
    const std::size_t end = agree ? until[i].size() : alone.size();
    for (std::size_t k = agree ? at : 0; k < end; ++k) {
      coded.push_back(2 * (agree ? all[k] : alone[k]) + (parts[i].answer ? 1 : 0));
    }
    at = end;
  }
}

}  // namespace orthant
