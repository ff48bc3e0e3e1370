#include "core/tokenizer/template_messages.h"

#include <orthant/error.h>

#include <algorithm>

namespace orthant {
namespace {

constexpr std::string_view template_roles[] = {"system", "developer", "user", "assistant", "tool"};

template <class... Args>
[[noreturn]] void refuse_message(fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError(fmt::format(format, std::forward<Args>(args)...));
}

OrderedJson content_of(const OrderedJson& content, const std::string& where) {
  if (content.is_string() || content.is_null()) {
    return content;
  }
  if (!content.is_array()) {
    refuse_message("{}: the content is {}: expected a text, or a list of parts of type text", where,
                   shown_json(content));
  }
  std::string text;
  bool begun = false;
  for (const OrderedJson& part : content) {
    const bool good = part.is_object() && part.value("type", OrderedJson()) == "text" &&
                      part.value("text", OrderedJson()).is_string() && part.size() == 2;
    if (!good) {
      refuse_message(
          "{}: the content has the part {}: expected {{\"type\": \"text\", \"text\": ...}}; texts alone are "
          "read here",
          where, shown_json(part));
    }
    text += begun ? "\n" : "";
    text += part.at("text").get_ref<const std::string&>();
    begun = true;
  }
  return text;
}

OrderedJson calls_of(const OrderedJson& calls, const std::string& where) {
  OrderedJson made = OrderedJson::array();
  for (const OrderedJson& call : calls.is_array() ? calls : OrderedJson::array({calls})) {
    const OrderedJson function = call.is_object() ? call.value("function", OrderedJson()) : OrderedJson();
    if (!function.is_object() || !function.value("name", OrderedJson()).is_string()) {
      refuse_message(
          "{}: tool_calls has {}: expected {{\"type\": \"function\", \"function\": {{\"name\", "
          "\"arguments\"}}}}",
          where, shown_json(call));
    }
    made.push_back(call);
    OrderedJson& arguments = made.back()["function"]["arguments"];
    if (arguments.is_null() || arguments == "") {
      arguments = OrderedJson::object();
    } else if (arguments.is_string()) {
      try {
        arguments = parse_ordered_json(arguments.get<std::string>(), where + ": the arguments of a call");
      } catch (const Error& error) {
        throw ConfigError(error.what());
      }
    }
  }
  return made;
}

}  // namespace

std::string shown_json(const OrderedJson& value) {
  constexpr std::size_t longest = 80;
  const std::string text = value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

OrderedJson template_message(const OrderedJson& given, const std::string& where) {
  if (!given.is_object()) {
    refuse_message("{} is {}: expected an object with a role and a content", where, shown_json(given));
  }
  OrderedJson made = OrderedJson::object();
  for (const auto& [key, value] : given.items()) {
    const bool nothing = value.is_null() || (value.is_array() && value.empty());
    if (std::find(message_fields.begin(), message_fields.end(), key) != message_fields.end()) {
      made[key] = key == "content" ? content_of(value, where) : value;
    } else if (!nothing) {
      refuse_message("{} has '{}', which no template here is given: leave it out", where, key.substr(0, 80));
    }
  }
  const OrderedJson role = made.value("role", OrderedJson());
  const std::string_view named = role.is_string() ? std::string_view(role.get_ref<const std::string&>()) : "";
  if (std::find(std::begin(template_roles), std::end(template_roles), named) == std::end(template_roles)) {
    refuse_message("{}: the role is {}: expected system, developer, user, assistant or tool", where, shown_json(role));
  }
  const OrderedJson calls = made.value("tool_calls", OrderedJson());
  if (calls.is_null() || (calls.is_array() && calls.empty())) {
    made.erase("tool_calls");
  } else {
    made["tool_calls"] = calls_of(calls, where);
  }
  if (!made.contains("content")) {
    made["content"] = nullptr;
  }
  if (made["content"].is_null() && role != "assistant") {
    refuse_message("{} has no content", where);
  }
  if (made["content"].is_null() && !made.contains("tool_calls")) {
    refuse_message("{} has neither content nor tool_calls", where);
  }
  return made;
}

OrderedJson template_tools(const OrderedJson& given) {
  if (given.is_null() || (given.is_array() && given.empty())) {
    return nullptr;
  }
  if (!given.is_array()) {
    refuse_message("'tools' is {}: expected a list of objects", shown_json(given));
  }
  for (const OrderedJson& tool : given) {
    const OrderedJson function = tool.is_object() ? tool.value("function", OrderedJson()) : OrderedJson();
    if (!function.is_object() || tool.value("type", OrderedJson()) != "function" ||
        !function.value("name", OrderedJson()).is_string()) {
      refuse_message("'tools' has {}: expected {{\"type\": \"function\", \"function\": {{\"name\", ...}}}}",
                     shown_json(tool));
    }
  }
  return given;
}

}  // namespace orthant
