#include "core/tokenizer/text_rules.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/json.h"

namespace orthant {
namespace {

template <class T>
void add_new(std::vector<T>& all, const std::vector<T>& more) {
  for (const T& one : more) {
    if (std::find(all.begin(), all.end(), one) == all.end()) {
      all.push_back(one);
    }
  }
}

// Those that the tokenizer would cut; the longest at a place is found.
std::vector<std::string> not_found_by(const Tokenizer& tokenizer, const TextRules& rules) {
  std::vector<std::string> texts = tokenizer.unread_tokens();
  add_new(texts, rules.special);
  const auto encoder = tokenizer.encoder();
  std::erase_if(texts, [&](const std::string& text) {
    const std::optional<std::int32_t> id = tokenizer.id_of(text);
    std::vector<std::int32_t> ids;
    encoder->encode(text, ids);
    return text.empty() || !id || ids == std::vector{*id};
  });
  std::stable_sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return texts;
}

}  // namespace

TextRules joined(TextRules rules, const TextRules& more, const Tokenizer& tokenizer) {
  if (!more.end_ids.empty() || !more.end_texts.empty()) {
    rules.end_ids = end_ids(tokenizer, rules);
  }
  add_new(rules.end_ids, more.end_ids);
  add_new(rules.end_texts, more.end_texts);
  add_new(rules.special, more.special);
  rules.bos = more.bos.has_value() ? more.bos : rules.bos;
  rules.chat_template = more.chat_template.empty() ? rules.chat_template : more.chat_template;
  return rules;
}

bool begins_with_bos(const Tokenizer& tokenizer, const TextRules& rules) {
  const SpecialTokens& special = tokenizer.special();
  return special.bos.has_value() && rules.bos.value_or(special.bos_first);
}

std::vector<std::int32_t> end_ids(const Tokenizer& tokenizer, const TextRules& rules) {
  const std::optional<std::int32_t> eos = tokenizer.special().eos;
  return rules.end_ids.empty() && eos.has_value() ? std::vector{*eos} : rules.end_ids;
}

std::string described(const TextRules& rules, const Tokenizer& tokenizer) {
  std::vector<std::string> ends;
  for (const std::int32_t id : end_ids(tokenizer, rules)) {
    ends.push_back(fmt::format("id {}", id));
  }
  for (const std::string& text : rules.end_texts) {
    ends.push_back(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return fmt::format(
      "texts begin {} and {}",
      begins_with_bos(tokenizer, rules) ? fmt::format("with bos (id {})", *tokenizer.special().bos) : "without bos",
      ends.empty() ? "have no end of their own" : fmt::format("end at {}", fmt::join(ends, ", ")));
}

TextReader::TextReader(const Tokenizer& tokenizer, const TextRules& rules)
    : tokenizer_(tokenizer),
      bos_(begins_with_bos(tokenizer, rules)),
      special_(tokenizer, not_found_by(tokenizer, rules)) {}

std::vector<std::int32_t> TextReader::ids(std::string_view text, std::optional<bool> bos) {
  std::vector<std::int32_t> ids;
  special_.encode(text, ids);
  const std::optional<std::int32_t> first = tokenizer_.special().bos;
  if (first.has_value() && bos.value_or(bos_) && (ids.empty() || ids.front() != *first)) {
    ids.insert(ids.begin(), *first);
  }
  return ids;
}

}  // namespace orthant
