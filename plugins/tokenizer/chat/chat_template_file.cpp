#include "plugins/tokenizer/chat/chat_template_file.h"

#include <orthant/error.h>

#include <algorithm>
#include <memory>

#include "core/base/mapped_file.h"
#include "core/config/toml_reader.h"

namespace orthant {
namespace {

class TemplateReader {
 public:
  explicit TemplateReader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  void read(const Node& root, ChatTemplate& chat) {
    for (const Member& member : root.members) {
      if (member.key == "special") {
        take_list(member, chat.special);
      } else if (member.key == "begin") {
        take(member, chat.begin);
      } else if (member.key == "user_after_system") {
        take(member, chat.user_after_system);
      } else if (member.key == "trims") {
        take(member, chat.trims);
      } else if (member.key == "alternates") {
        take(member, chat.alternates);
      } else if (const auto role = std::find(roles.begin(), roles.end(), member.key); role != roles.end()) {
        read_turn(member, chat.turns[static_cast<std::size_t>(role - roles.begin())]);
      } else {
        diagnostics_.add(member.origin, fmt::format("{} is no key of a chat template", in_quotes(member.key)),
                         "write special, begin, trims, alternates, user_after_system, [system], [user] or [assistant]");
      }
    }
  }

 private:
  static constexpr std::array<const char*, 3> roles = {"system", "user", "assistant"};  // by ChatRole

  void read_turn(const Member& table, ChatTemplate::Turn& turn) {
    if (!is(table, Node::Kind::table)) {
      return;
    }
    for (const Member& member : table.value.members) {
      std::string* const text = member.key == "before"  ? &turn.before
                                : member.key == "begin" ? &turn.begin
                                : member.key == "end"   ? &turn.end
                                : member.key == "after" ? &turn.after
                                                        : nullptr;
      if (text == nullptr) {
        diagnostics_.add(member.origin, fmt::format("{} is no text around a message", in_quotes(member.key)),
                         "write before, begin, end or after");
      } else {
        take(member, *text);
      }
    }
  }

  void take(const Member& member, std::string& text) {
    if (is(member, Node::Kind::text)) {
      text = member.value.text;
    }
  }
  void take(const Member& member, bool& value) {
    if (is(member, Node::Kind::boolean)) {
      value = member.value.boolean;
    }
  }
  void take_list(const Member& member, std::vector<std::string>& texts) {
    if (!is(member, Node::Kind::array)) {
      return;
    }
    for (const Node& item : member.value.items) {
      if (item.kind == Node::Kind::text && !item.text.empty()) {
        texts.push_back(item.text);
      } else {
        diagnostics_.add(item.origin, "special: expected the texts of tokens", "write special = [\"</s>\"], say");
      }
    }
  }

  bool is(const Member& member, Node::Kind kind) {
    if (member.value.kind != kind) {
      Node wanted;
      wanted.kind = kind;
      diagnostics_.add(member.value.origin, fmt::format("{}: expected {}, found {}", printable(member.key),
                                                        kind_name(wanted), kind_name(member.value)));
    }
    return member.value.kind == kind;
  }

  Diagnostics& diagnostics_;
};

}  // namespace

ChatTemplate read_chat_template(const std::string& path) {
  const MappedFile file{path};
  const std::string text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  const auto sources = std::make_shared<Sources>();
  Diagnostics diagnostics(sources);
  ChatTemplate chat{.name = path};
  if (const std::optional<Node> root = read_toml(*sources, sources->add(path, text), text, diagnostics)) {
    TemplateReader(diagnostics).read(*root, chat);
    if (chat.turns[static_cast<std::size_t>(ChatRole::assistant)].end.empty()) {
      diagnostics.add("default", "[assistant] has no end: the model would not learn where an answer ends",
                      "write end = \"</s>\", say, below [assistant]");
    }
  }
  diagnostics.throw_if_any();
  return chat;
}

}  // namespace orthant
