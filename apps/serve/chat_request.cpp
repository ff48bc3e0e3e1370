#include "apps/serve/chat_request.h"

#include <orthant/error.h>

#include <algorithm>

#include "apps/serve/api_error.h"
#include "apps/serve/tool_call_reader.h"
#include "core/tokenizer/model_template.h"
#include "core/tokenizer/template_messages.h"

namespace orthant {
namespace {

std::vector<std::string_view> chat_fields() {
  std::vector<std::string_view> known(std::begin(answer_fields), std::end(answer_fields));
  known.insert(known.end(), {"messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "tools",
                             "tool_choice", "parallel_tool_calls", "documents", "chat_template_kwargs",
                             "add_generation_prompt", "continue_final_message", "reasoning_effort", "store"});
  return known;
}

// Of what the data of a run share.
template <class Read>
OrderedJson checked(const char* field, Read&& read) {
  try {
    return read();
  } catch (const ConfigError& error) {
    throw ApiError(400, error.what(), field);
  }
}

// Of a template that does not know it nothing would be seen.
OrderedJson list_field(const RequestFields& fields, const char* key, const ModelTemplate& chat) {
  const OrderedJson* list = fields.at(key);
  if (list == nullptr || (list->is_array() && list->empty())) {
    return nullptr;
  }
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), [](const auto& one) { return one.is_object(); })) {
    refuse_field(key, "'{}' is {}: expected a list of objects", key, shown(*list));
  }
  if (!chat.mentions(key, std::string_view(key) == "tools")) {
    refuse_field(key, "'{}': the model's template ({}) knows of none, and would leave them out", key, chat.where());
  }
  return *list;
}

void check_tools(const RequestFields& fields, const OrderedJson& tools) {
  checked("tools", [&] { return template_tools(tools); });
  fields.refuse_unless(fields.is("tool_choice", "auto") || fields.is("tool_choice", "none"), "tool_choice",
                       "it shows tools to the model, and never forces a call; give \"auto\", or leave it out");
  fields.refuse_unless(fields.flag("parallel_tool_calls", true), "parallel_tool_calls",
                       "the model calls as it likes; give true, or leave it out");
}

TemplateInput conversation_of(const RequestFields& fields, const ModelTemplate& chat) {
  TemplateInput made;
  const OrderedJson* messages = fields.at("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    refuse_field("messages", "'messages' is {}: expected a list of at least one message",
                 messages == nullptr ? "missing" : shown(*messages));
  }
  for (const OrderedJson& message : *messages) {
    made.messages.push_back(checked(
        "messages", [&] { return template_message(message, fmt::format("message {}", made.messages.size())); }));
  }
  made.tools = list_field(fields, "tools", chat);
  check_tools(fields, made.tools);
  made.documents = list_field(fields, "documents", chat);
  if (const OrderedJson* more = fields.at("chat_template_kwargs")) {
    if (!more->is_object()) {
      refuse_field("chat_template_kwargs", "'chat_template_kwargs' is {}: expected an object", shown(*more));
    }
    made.variables = *more;
  }
  if (const OrderedJson* effort = fields.at("reasoning_effort")) {
    made.variables["reasoning_effort"] = *effort;
  }
  for (const auto& [name, value] : made.variables.items()) {
    const char* const field =
        fields.at("chat_template_kwargs") != nullptr && fields.at("chat_template_kwargs")->contains(name)
            ? "chat_template_kwargs"
            : "reasoning_effort";
    if (!chat.mentions(name, !made.tools.is_null())) {
      refuse_field(field, "'{}': the model's template ({}) does not know it, and would leave it out", clipped(name),
                   chat.where());
    }
    if (name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt") {
      refuse_field(field, "'{}' is a field of the request itself", name);
    }
  }
  made.continue_final = fields.flag("continue_final_message");
  made.add_generation_prompt = fields.flag("add_generation_prompt", !made.continue_final);
  if (made.continue_final && made.add_generation_prompt) {
    refuse_field("continue_final_message",
                 "'continue_final_message' and 'add_generation_prompt' are both true: an "
                 "answer either goes on with the last message or begins a new one");
  }
  return made;
}

bool reads_calls(const RequestFields& fields, const TemplateInput& conversation, const ModelTemplate& chat) {
  return !conversation.tools.is_null() && !fields.is("tool_choice", "none") &&
         chat.mentions(std::string(ToolCallReader::begin_mark), true);
}

void read_prompt(const RequestFields& fields, const TemplateInput& conversation, const CompletionLimits& limits,
                 CompletionRequest& read) {
  try {
    const std::string text = limits.chat->render(conversation).text;
    read.prompts = {limits.chat->ids(text, fields.flag("add_special_tokens"))};
    const std::size_t begun = text.rfind(ToolCallReader::begin_of_thought);
    read.in_thought = begun != text.npos &&
                      text.find_first_not_of(" \n", begun + ToolCallReader::begin_of_thought.size()) == text.npos;
  } catch (const TemplateError& error) {
    throw ApiError(400,
                   error.raised()
                       ? fmt::format("the model's template refuses this conversation: {}", error.what())
                       : fmt::format("the model's template ({}, line {}) cannot be rendered with this conversation: {}",
                                     limits.chat->where(), error.line(), error.what()),
                   "messages", "chat_template");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages");
  }
}

}  // namespace

CompletionRequest read_chat(const std::string& text, const CompletionLimits& limits) {
  const RequestFields fields(text, chat_fields());
  CompletionRequest read;
  read.chat = true;
  const Request request = answer_of(fields, limits);
  if (limits.chat == nullptr) {
    throw ApiError(400, limits.no_chat, "messages", "no_chat_template");
  }
  read_delivery(fields, read);
  fields.refuse_unless(!fields.flag("store"), "store", "nothing is kept here; give false, or leave it out");
  const std::int64_t top = fields.integer("top_logprobs", 0, 0, most_logprobs);
  if (fields.flag("logprobs")) {
    read.logprobs = top;
  } else if (top > 0) {
    refuse_field("top_logprobs", "'top_logprobs' without \"logprobs\": true");
  }
  std::optional<std::int64_t> max_tokens;
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (fields.at(key) != nullptr) {
      const std::int64_t asked = fields.integer(key, 0, 1, limits.context);
      if (max_tokens.value_or(asked) != asked) {
        refuse_field(key, "'max_tokens' is {} and 'max_completion_tokens' {}: give one of them", *max_tokens, asked);
      }
      max_tokens = asked;
    }
  }
  const TemplateInput conversation = conversation_of(fields, *limits.chat);
  read_prompt(fields, conversation, limits, read);
  read.reads_calls = reads_calls(fields, conversation, *limits.chat);
  add_choices(read, request, max_tokens, limits.context, limits);
  return read;
}

}  // namespace orthant
