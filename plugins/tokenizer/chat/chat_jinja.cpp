#include "plugins/tokenizer/chat/chat_jinja.h"

#include <orthant/error.h>

namespace orthant {
namespace {

// As Jinja reads a string: a line feed in one would depend on the file.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "'";
}

// Texts that stand one after another, as one expression.
std::string sum_of(std::initializer_list<std::string> parts) {
  std::string sum;
  for (const std::string& part : parts) {
    if (part != "''") {
      sum += (sum.empty() ? "" : " + ") + part;
    }
  }
  return sum.empty() ? "''" : sum;
}

std::string if_text(const std::string& condition, const std::string& body) {
  return "{%- if " + condition + " %}" + body + "{%- endif %}";
}

}  // namespace

std::string jinja_of(const ChatTemplate& chat) {
  const auto turn = [&](ChatRole role) -> const ChatTemplate::Turn& {
    return chat.turns[static_cast<std::size_t>(role)];
  };
  // The characters that ChatEncoder trims; Jinja's own are more.
  const std::string content = chat.trims ? "message['content'] | trim(' \\t\\n\\r\\x0c\\x0b')" : "message['content']";
  const auto written = [&](const std::string& before, const ChatTemplate::Turn& of) {
    return "{{- " + sum_of({before, quoted(of.begin), "(" + content + ")", quoted(of.end), quoted(of.after)}) + " }}";
  };
  std::string text;
  if (!chat.begin.empty()) {
    text += "{{- " + quoted(chat.begin) + " }}";
  }
  std::string user_before = quoted(turn(ChatRole::user).before);
  if (chat.alternates) {
    text += "{%- set turns = namespace(first=0) %}";
    text += if_text("messages and messages[0]['role'] == 'system'", "{%- set turns.first = 1 %}");
    user_before =
        "(" + quoted(chat.user_after_system) + " if loop.index0 == 1 and turns.first == 1 else " + user_before + ")";
  }
  text += "{%- for message in messages %}";
  if (chat.alternates) {
    text +=
        if_text("loop.index0 >= turns.first and (message['role'] == 'user') != ((loop.index0 - turns.first) % 2 == 0)",
                "{{- raise_exception('at most one system message, then user and assistant by turns') }}");
    text += if_text("loop.index0 > 0 and message['role'] == 'system'",
                    "{{- raise_exception('at most one system message, then user and assistant by turns') }}");
  }
  text +=
      "{%- if message['role'] == 'system' %}" + written(quoted(turn(ChatRole::system).before), turn(ChatRole::system));
  text += "{%- elif message['role'] == 'user' %}" + written(user_before, turn(ChatRole::user));
  text += "{%- elif message['role'] == 'assistant' %}" +
          written(quoted(turn(ChatRole::assistant).before), turn(ChatRole::assistant));
  text += "{%- else %}{{- raise_exception('a role is system, user or assistant') }}{%- endif %}{%- endfor %}";
  if (!turn(ChatRole::assistant).before.empty()) {
    text += if_text("add_generation_prompt", "{{- " + quoted(turn(ChatRole::assistant).before) + " }}");
  }
  return text;
}

}  // namespace orthant
