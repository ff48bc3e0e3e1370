#include "plugins/tokenizer/chat/template_encoder.h"

#include <orthant/error.h>

#include <algorithm>

namespace orthant {
namespace {

RenderedTemplate rendered(const ModelTemplate& chat, const TemplateInput& input) {
  try {
    return chat.render(input);
  } catch (const TemplateError& error) {
    throw ConfigError(error.raised() ? fmt::format("the model's template refuses the conversation: {}", error.what())
                                     : fmt::format("the model's template ({}, line {}): {}", chat.where(), error.line(),
                                                   error.what()));
  }
}

}  // namespace

TemplateEncoder::TemplateEncoder(const Tokenizer& tokenizer, std::shared_ptr<const ModelTemplate> chat)
    : tokenizer_(tokenizer), chat_(std::move(chat)) {}

std::vector<TemplateEncoder::Span> TemplateEncoder::answers(const TemplateInput& input, const std::vector<bool>& learnt,
                                                            const RenderedTemplate& whole) {
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
  encode(read_template_row(line, *chat_), coded);
}

void TemplateEncoder::encode(const TemplateRow& row, std::vector<std::int32_t>& coded) {
  const RenderedTemplate whole = rendered(*chat_, row.input);
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
