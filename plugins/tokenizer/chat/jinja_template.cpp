#include "plugins/tokenizer/chat/jinja_template.h"

#include <orthant/error.h>
#include <xxhash.h>

#include <algorithm>

#include "plugins/tokenizer/jinja/characters.h"
#include "plugins/tokenizer/jinja/json_value.h"

namespace orthant {
namespace {

const std::string* file_of(const Tokenizer& tokenizer, const std::string& name) {
  const auto& files = tokenizer.files();
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const TokenizerFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &found->bytes;
}

// null where there is no such file.
OrderedJson json_of(const Tokenizer& tokenizer, const std::string& name) {
  const std::string* text = file_of(tokenizer, name);
  return text == nullptr ? OrderedJson() : OrderedJson::parse(*text, nullptr, false);
}

// {"bos_token": "<s>", ...}: a token is a text, or an object that has it.
OrderedJson special_texts(const Tokenizer& tokenizer) {
  OrderedJson made = OrderedJson::object();
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const OrderedJson config = json_of(tokenizer, name);
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      const OrderedJson token = config.is_object() ? config.value(key, OrderedJson()) : OrderedJson();
      const OrderedJson text = token.is_object() ? token.value("content", OrderedJson()) : token;
      if (text.is_string()) {
        made[key] = text;
      }
    }
  }
  const SpecialTokens& special = tokenizer.special();
  for (const auto& [key, id] : {std::pair("bos_token", special.bos), std::pair("eos_token", special.eos)}) {
    for (const std::string& token : tokenizer.unread_tokens()) {
      if (!made.contains(key) && id.has_value() && tokenizer.id_of(token) == id) {
        made[key] = token;
      }
    }
  }
  return made;
}

// Of the key chat_template: a text, or a list of {"name", "template"}.
std::map<std::string, std::string> sources_of(const OrderedJson& value) {
  std::map<std::string, std::string> sources;
  if (value.is_string()) {
    sources["default"] = value.get<std::string>();
  }
  for (const OrderedJson& one : value.is_array() ? value : OrderedJson::array()) {
    const OrderedJson name = one.is_object() ? one.value("name", OrderedJson()) : OrderedJson();
    const OrderedJson source = one.is_object() ? one.value("template", OrderedJson()) : OrderedJson();
    if (name.is_string() && source.is_string()) {
      sources[name.get<std::string>()] = source.get<std::string>();
    }
  }
  return sources;
}

}  // namespace

std::shared_ptr<const ModelTemplate> JinjaTemplate::of(const TextRules& rules, const Tokenizer& tokenizer) {
  std::string where = "the run's text_rules.json";
  std::map<std::string, std::string> sources;
  if (!rules.chat_template.empty()) {
    sources["default"] = rules.chat_template;
  } else if (const std::string* text = file_of(tokenizer, "chat_template.jinja")) {
    where = "chat_template.jinja of " + tokenizer.name();
    sources["default"] = *text;
  } else if (const OrderedJson config = json_of(tokenizer, "tokenizer_config.json"); config.is_object()) {
    where = "chat_template in tokenizer_config.json of " + tokenizer.name();
    sources = sources_of(config.value("chat_template", OrderedJson()));
  }
  return sources.empty() ? nullptr
                         : std::shared_ptr<const ModelTemplate>(new JinjaTemplate(where, sources, rules, tokenizer));
}

JinjaTemplate::JinjaTemplate(std::string where, const std::map<std::string, std::string>& sources,
                             const TextRules& rules, const Tokenizer& tokenizer)
    : where_(std::move(where)), special_(special_texts(tokenizer)), rules_(rules), tokenizer_(tokenizer) {
  for (const auto& [name, source] : sources) {
    if (sources.size() > 1 && name != "default" && name != "tool_use") {
      continue;  // one that is asked for by name elsewhere
    }
    try {
      variants_.emplace(sources.size() == 1 ? "default" : name, Variant{source, jinja::Template(source)});
    } catch (const TemplateError& error) {
      throw ConfigError(fmt::format("{}, line {}: {}", where_, std::max(1, error.line()), error.what()));
    }
  }
  if (!variants_.contains("default")) {
    throw ConfigError(fmt::format("{}: several templates, of which none is named default", where_));
  }
}

const JinjaTemplate::Variant& JinjaTemplate::variant(bool with_tools) const {
  const auto found = with_tools ? variants_.find("tool_use") : variants_.end();
  return found != variants_.end() ? found->second : variants_.at("default");
}

bool JinjaTemplate::mentions(const std::string& name, bool with_tools) const {
  return variant(with_tools).source.find(name) != std::string::npos;
}

// A mark behind the last message says where it ends.
RenderedTemplate JinjaTemplate::render(const TemplateInput& conversation) const {
  constexpr std::string_view mark = "CONTINUE_FINAL_MESSAGE_TAG ", bare = mark.substr(0, mark.size() - 1);
  OrderedJson messages = conversation.messages;
  std::string last;
  if (conversation.continue_final) {
    const OrderedJson text = messages.empty() ? OrderedJson() : messages.back().value("content", OrderedJson());
    if (!text.is_string()) {
      throw ConfigError("the last message has no text to be continued");
    }
    last = text.get<std::string>();
    messages.back()["content"] = last + std::string(mark);
  }
  jinja::Dict variables;
  for (const OrderedJson& more : {special_, conversation.variables}) {
    for (const auto& [name, value] : more.items()) {
      variables.set(jinja::Value(name), jinja::value_of(value));
    }
  }
  variables.set(jinja::Value("messages"), jinja::value_of(messages));
  variables.set(jinja::Value("tools"), jinja::value_of(conversation.tools));
  variables.set(jinja::Value("documents"), jinja::value_of(conversation.documents));
  variables.set(jinja::Value("add_generation_prompt"), jinja::Value(conversation.add_generation_prompt));
  RenderedTemplate made = variant(!conversation.tools.is_null()).parsed.render(std::move(variables));
  if (conversation.continue_final) {
    const std::size_t at = made.text.rfind(bare);
    const std::string_view shown = jinja::stripped(last, true, true);
    if (at == std::string::npos || made.text.find(shown) == std::string::npos) {
      throw ConfigError("the template does not write the last message as it is, so it cannot be continued");
    }
    const bool whole = made.text.compare(at, mark.size(), mark) == 0;
    made.text.resize(at);
    if (!whole) {
      made.text.resize(jinja::stripped(made.text, false, true).size());
    }
  }
  return made;
}

std::uint64_t JinjaTemplate::hash() const {
  std::string all = special_.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  for (const auto& [name, variant] : variants_) {
    all += fmt::format("{} {} {}", name, variant.source.size(), variant.source);
  }
  return XXH3_64bits(all.data(), all.size());
}

std::vector<std::int32_t> JinjaTemplate::ids(const std::string& text, bool bos) const {
  return TextReader(tokenizer_, rules_).ids(text, bos);
}

}  // namespace orthant
