// Messages and tools as a model's own template is given them: what clients of chats send, and rows of chat files.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "core/base/ordered_json.h"

namespace orthant {

// The fields of a message that a template may be given.
inline constexpr std::array<std::string_view, 8> message_fields = {
    "role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking"};

// Parts of type text as one text, a line each; arguments of calls as what their JSON says; null where an assistant has
// no content. Other fields must say nothing. where: "message 2". Errors: ConfigError.
OrderedJson template_message(const OrderedJson& given, const std::string& where);

// null, or a list of {"type": "function", "function": {"name", ...}}. Errors: ConfigError.
OrderedJson template_tools(const OrderedJson& given);

// As JSON, short enough for a message.
std::string shown_json(const OrderedJson& value);

}  // namespace orthant
