#include "core/data/template_encoder.h"

#include <orthant/error.h>

#include <algorithm>

#include "core/base/json.h"
#include "core/data/chat_message.h"
#include "core/data/row_keys.h"
#include "core/data/template_messages.h"

namespace orthant {
namespace {

constexpr const char* beside_messages[] = {"tools", "documents", "chat_template_kwargs"};

// Which messages are learnt is told apart.
struct Row {
  TemplateInput input;
  std::vector<bool> learnt;
};

// Keys that no template is given, as row_keys.h has them. Order means nothing there.
void check_others(const OrderedJson& object, std::span<const std::string_view> given, const std::string& where) {
  Json others = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (std::find(given.begin(), given.end(), key) == given.end()) {
      others[key] = Json::parse(value.dump());
    }
  }
  where.empty() ? check_row_keys(others) : check_message_keys(others, where + ": ");
}

void add_message(Row& row, const OrderedJson& given) {
  const std::string where = fmt::format("message {}", row.learnt.size() + 1);
  OrderedJson message = OrderedJson::object();
  for (const std::string_view key : message_fields) {
    if (given.is_object() && given.contains(key)) {
      message[std::string(key)] = given[std::string(key)];
    }
  }
  row.input.messages.push_back(template_message(given.is_object() ? message : given, where));
  check_others(given, message_fields, where);
  const bool answers = row.input.messages.back()["role"] == "assistant";
  const Json whole = Json::parse(given.dump());
  const ChatRole role = answers ? ChatRole::assistant : ChatRole::user;
  row.learnt.push_back(read_train(whole, role, where + ": ").value_or(answers) && answers);
}

Row read_template_row(std::string_view text, const ModelTemplate& chat) {
  OrderedJson json;
  try {
    json = parse_ordered_json(text, "the row");
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
  const OrderedJson messages = json.is_object() ? json.value("messages", OrderedJson()) : OrderedJson();
  if (!messages.is_array() || messages.empty()) {
    throw ConfigError(
        "expected an object with a list of \"messages\", which data.chat_template = \"model\" is read of");
  }
  Row row;
  for (const OrderedJson& message : messages) {
    add_message(row, message);
  }
  row.input.tools = template_tools(json.value("tools", OrderedJson()));
  row.input.documents = json.value("documents", OrderedJson());
  const OrderedJson more = json.value("chat_template_kwargs", OrderedJson());
  row.input.variables = more.is_object() ? more : OrderedJson::object();
  constexpr std::string_view given[] = {"messages", "tools", "documents", "chat_template_kwargs"};
  check_others(json, given, "");
  const bool tools = !row.input.tools.is_null();
  for (const char* key : beside_messages) {
    const OrderedJson value = json.value(key, OrderedJson());
    const bool nothing = value.is_null() || value.empty();
    if (std::string_view(key) != "chat_template_kwargs" && !nothing && !chat.mentions(key, tools)) {
      throw ConfigError(
          fmt::format("\"{}\": the model's template ({}) knows of none, and would leave them out", key, chat.where()));
    }
  }
  for (const auto& [name, value] : row.input.variables.items()) {
    if (!chat.mentions(name, tools)) {
      throw ConfigError(
          fmt::format("\"chat_template_kwargs\": the model's template ({}) does not know '{}'", chat.where(), name));
    }
  }
  return row;
}

jinja::Rendered rendered(const ModelTemplate& chat, const TemplateInput& input) {
  try {
    return chat.render(input);
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(error.raised() ? fmt::format("the model's template refuses the conversation: {}", error.what())
                                     : fmt::format("the model's template ({}, line {}): {}", chat.where(), error.line(),
                                                   error.what()));
  }
}

}  // namespace

TemplateEncoder::TemplateEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ModelTemplate> chat)
    : tokenizer_(tokenizer), chat_(std::move(chat)) {}

std::vector<TemplateEncoder::Span> TemplateEncoder::answers(const TemplateInput& input, const std::vector<bool>& learnt,
                                                            const jinja::Rendered& whole) {
  std::vector<Span> spans;
  if (chat_->mentions("endgeneration", !input.tools.is_null())) {
    std::vector<bool> answers;  // whether each is learnt
    for (std::size_t i = 0; i < learnt.size(); ++i) {
      if (input.messages[i]["role"] == "assistant") {
        answers.push_back(learnt[i]);
      }
    }
    const bool one_each = whole.generated.size() == answers.size();
    if (!one_each && std::find(answers.begin(), answers.end(), false) != answers.end()) {
      throw ConfigError(
          "an answer says that it is not learnt, and the template does not write one {% generation %} for each answer");
    }
    for (std::size_t i = 0; i < whole.generated.size(); ++i) {
      if (!one_each || answers[i]) {
        spans.push_back({whole.generated[i].first, whole.generated[i].second});
      }
    }
    return spans;
  }
  for (std::size_t i = 0; i < learnt.size(); ++i) {
    if (!learnt[i]) {
      continue;
    }
    TemplateInput part = input;
    part.messages = OrderedJson(input.messages.begin(), input.messages.begin() + static_cast<std::ptrdiff_t>(i));
    part.add_generation_prompt = true;
    if (i == 0) {
      throw ConfigError("message 1 is an answer, and the template has no {% generation %} that says what is learnt");
    }
    const std::string before = rendered(*chat_, part).text;
    part.messages.push_back(input.messages[i]);
    part.add_generation_prompt = false;
    const std::string with = rendered(*chat_, part).text;
    if (!with.starts_with(before) || !whole.text.starts_with(with)) {
      throw ConfigError(fmt::format(
          "message {}: the template writes this answer in another way {}, so what is learnt cannot be told; end the "
          "conversation with it, write \"train\": false into it, or give a template with {{% generation %}}",
          i + 1, with.starts_with(before) ? "once others follow" : "than it begins one"));
    }
    spans.push_back({before.size(), with.size()});
  }
  return spans;
}

std::vector<std::int32_t> TemplateEncoder::ids(std::string_view text) {
  return chat_->ids(std::string(text));
}

void TemplateEncoder::encode(std::string_view line, std::vector<std::int32_t>& coded) {
  const Row row = read_template_row(line, *chat_);
  const jinja::Rendered whole = rendered(*chat_, row.input);
  const std::vector<std::int32_t> all = ids(whole.text);
  // Bytes where what is learnt begins or ends.
  std::vector<std::pair<std::size_t, bool>> cuts;
  for (const Span& span : answers(row.input, row.learnt, whole)) {
    cuts.emplace_back(span.begin, false);
    cuts.emplace_back(span.end, true);
  }
  cuts.emplace_back(whole.text.size(), false);
  const std::vector<std::int32_t> ends = chat_->ends();
  std::vector<std::int32_t> made;
  std::size_t at = 0;
  bool apart = false;  // a token would be half an answer: parts are encoded by themselves, as generation sees them
  for (const auto& [cut, learnt] : cuts) {
    const std::string_view before(whole.text.data(), cut);
    std::vector<std::int32_t> now = apart ? std::vector<std::int32_t>() : ids(before);
    const bool begins = now.size() >= made.size() && std::equal(made.begin(), made.end(), now.begin()) &&
                        now.size() <= all.size() && std::equal(now.begin(), now.end(), all.begin());
    if (!begins) {
      apart = true;
      now = made;
      const std::vector<std::int32_t> part = ids(before.substr(at));
      now.insert(now.end(), part.begin(), part.end());
    }
    // Behind an end of text only blanks stand in an answer, if anything.
    auto last = now.end();
    for (auto token = now.begin() + static_cast<std::ptrdiff_t>(made.size()); learnt && token != now.end(); ++token) {
      last = std::find(ends.begin(), ends.end(), *token) != ends.end() ? token + 1 : last;
    }
    for (auto token = now.begin() + static_cast<std::ptrdiff_t>(made.size()); token != now.end(); ++token) {
      coded.push_back(2 * *token + (learnt && token < last ? 1 : 0));
    }
    made = std::move(now);
    at = cut;
  }
  if (made != all && tokenizer_.decode(made) != tokenizer_.decode(all)) {
    throw ConfigError("an answer begins or ends within a token, and this tokenizer writes its parts as another text");
  }
  if (made.empty()) {
    throw ConfigError("the conversation has no token: the template writes nothing");
  }
}

}  // namespace orthant
