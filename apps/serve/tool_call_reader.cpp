#include "apps/serve/tool_call_reader.h"

#include <orthant/error.h>

#include <algorithm>
#include <optional>

#include "core/base/ordered_json.h"

namespace orthant {
namespace {

constexpr std::string_view blanks = " \t\r\n";

std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(blanks);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

// Behind the string, object, array or other value that begins `json`, which is valid.
std::size_t end_of_value(std::string_view json) {
  std::size_t at = 0;
  int depth = 0;
  bool in_string = false;
  do {
    const char c = json[at++];
    if (in_string) {
      at += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else {
      in_string = c == '"';
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
  } while (in_string || depth > 0);
  return at;
}

// The text of an object's member, whose value is a string, an object or an array; numbers in it stay as they are
// written. REQUIRES: `object` is valid and has it.
std::string_view member_text(std::string_view object, const std::string& name) {
  std::size_t at = object.find('{') + 1;
  while (true) {
    at = object.find('"', at);
    const std::string_view key = object.substr(at, end_of_value(object.substr(at)));
    at = object.find_first_not_of(blanks, object.find(':', at + key.size()) + 1);
    const char first = object[at];
    const bool framed = first == '"' || first == '{' || first == '[';
    const std::size_t size = framed ? end_of_value(object.substr(at)) : object.find_first_of(",}", at) - at;
    if (OrderedJson::parse(key) == name) {
      return object.substr(at, size);
    }
    at += size;
  }
}

std::optional<ToolCall> call_of(std::string_view block) {
  OrderedJson json;
  try {
    json = parse_ordered_json(block, "a call");
  } catch (const Error&) {
    return {};
  }
  if (!json.is_object() || !json.value("name", OrderedJson()).is_string() || json["name"] == "") {
    return {};
  }
  // Arguments by another name, which would be lost.
  if (!json.contains("arguments") &&
      std::any_of(json.begin(), json.end(), [](const OrderedJson& value) { return value.is_structured(); })) {
    return {};
  }
  ToolCall call{.name = json["name"].get<std::string>(), .arguments = "{}"};
  const OrderedJson arguments = json.value("arguments", OrderedJson::object());
  if (arguments.is_string()) {  // of an object, written as one
    call.arguments = arguments.get<std::string>();
    if (!OrderedJson::parse(call.arguments, nullptr, false).is_object()) {
      return {};
    }
  } else if (!arguments.is_object()) {
    return {};
  } else if (json.contains("arguments")) {
    call.arguments = member_text(block, "arguments");
  }
  return call;
}

// How much there is before the blanks that `text` ends with.
std::size_t size_without_blanks(std::string_view text) {
  return text.find_last_not_of(blanks) + 1;  // npos + 1 is 0
}

// The same, and before what may become the mark.
std::size_t certain(std::string_view text, std::string_view mark) {
  std::size_t end = text.size();
  for (std::size_t size = std::min(mark.size() - 1, text.size()); size > 0; --size) {
    if (text.ends_with(mark.substr(0, size))) {
      end -= size;
      break;
    }
  }
  return size_without_blanks(text.substr(0, end));
}

}  // namespace

void ToolCallReader::take_block(std::string_view block, std::string_view whole) {
  if (std::optional<ToolCall> call = call_of(stripped(block))) {
    calls.push_back(std::move(*call));
    called_ = true;
    if (gap_.empty()) {
      gap_ = whole.substr(0, whole.find(begin_mark));
    }
  } else {
    tell(whole);
  }
}

void ToolCallReader::tell(std::string_view said) {
  text += said;
  called_ = false;
  told_ = told_ || !said.empty();
  gap_.clear();
}

void ToolCallReader::say(std::string_view said) {
  if (!called_) {
    tell(said);
    return;
  }
  const std::size_t blank = std::min(said.find_first_not_of(blanks), said.size());
  if (blank < said.size()) {
    const std::string gap = !told_ ? "" : gap_.empty() ? std::string(said.substr(0, blank)) : gap_;
    tell(gap + std::string(said.substr(blank)));
  }
}

void ToolCallReader::add(std::string_view more, bool last, bool stopped) {
  held_ += more;
  while (true) {
    const std::string_view border = in_thought_ ? end_of_thought : begin_of_thought;
    const std::size_t begin = in_thought_ ? held_.npos : held_.find(begin_mark), thought = held_.find(border);
    if (thought < begin) {
      const std::size_t end = thought + border.size();
      say(std::string_view(held_).substr(0, end));
      held_.erase(0, end);
      in_thought_ = !in_thought_;
      continue;
    }
    if (begin == held_.npos) {
      const std::size_t end = last ? held_.size() : std::min(certain(held_, begin_mark), certain(held_, border));
      say(std::string_view(held_).substr(0, end));
      held_.erase(0, end);
      return;
    }
    const std::size_t inside = begin + begin_mark.size(), end = held_.find(end_mark, inside);
    if (end == held_.npos && !last) {
      return;
    }
    // Before a call no blanks are told, unless it is none.
    const std::string_view held = held_, before = held.substr(0, begin);
    const std::size_t behind = end == held.npos ? held.size() : end + end_mark.size();
    const std::size_t told = size_without_blanks(before);
    say(before.substr(0, told));
    const std::string_view block = held.substr(inside, (end == held.npos ? held.size() : end) - inside);
    if (end == held.npos && !stopped) {
      text += held.substr(told);
    } else {
      take_block(block, held.substr(told, behind - told));
    }
    held_.erase(0, behind);
  }
}

}  // namespace orthant
