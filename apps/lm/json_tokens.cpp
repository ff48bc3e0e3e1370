#include "apps/lm/json_tokens.h"

#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace orthant {

// Between two other tokens: some decoders write no space before the first one, or behind the last.
JsonTokens::JsonTokens(const Tokenizer& tokenizer, std::int64_t vocabulary) {
  const auto decoded = [&](std::span<const std::int32_t> ids) -> std::optional<std::string> {
    try {
      return tokenizer.decode(ids);
    } catch (const Error&) {
      return std::nullopt;  // a vocabulary with a hole
    }
  };
  std::optional<std::int32_t> before;
  for (std::int32_t id = 0; id < vocabulary && !before.has_value(); ++id) {
    const auto text = decoded({&id, 1});
    if (text.has_value() && text->size() == 1 && (*text)[0] > ' ' && (*text)[0] <= '~') {
      before = id;
    }
  }
  const std::array<std::int32_t, 2> frame = {before.value_or(0), before.value_or(0)};
  const std::size_t framing = before.has_value() ? decoded(frame).value_or("").size() : 0;
  for (std::int32_t id = 0; id < vocabulary; ++id) {
    const std::array<std::int32_t, 3> all = {before.value_or(id), id, before.value_or(id)};
    const std::string text = decoded(before.has_value() ? std::span(all) : std::span(all).first(1)).value_or("");
    const std::size_t begin = before.has_value() ? 1 : 0, end = text.size() - std::min(text.size(), framing - begin);
    bytes_.push_back(end > begin ? text.substr(begin, end - begin) : "");
  }
  for (std::size_t id = 0; id < bytes_.size(); ++id) {
    if (!bytes_[id].empty()) {
      sorted_.push_back({.id = static_cast<std::int32_t>(id)});
      longest_ = std::max(longest_, bytes_[id].size());
    }
  }
  std::sort(sorted_.begin(), sorted_.end(), [&](const Sorted& a, const Sorted& b) { return of(a.id) < of(b.id); });
  for (std::size_t i = 1; i < sorted_.size(); ++i) {
    const std::string &last = of(sorted_[i - 1].id), &now = of(sorted_[i].id);
    sorted_[i].shared =
        static_cast<std::size_t>(std::mismatch(last.begin(), last.end(), now.begin(), now.end()).first - last.begin());
  }
}

// Tokens with one beginning try it once.
void JsonTokens::allow(const JsonAnswer& answer, std::span<float> logits, std::span<const std::int32_t> ends) const {
  std::vector<bool> may(logits.size());
  std::vector<JsonAnswer> behind(longest_ + 1, answer);  // so many bytes of the token
  std::size_t tried = 0;                                 // bytes of the last token that go on
  for (const auto& [id, shared] : sorted_) {
    if (shared > tried) {
      continue;
    }
    const std::string& bytes = of(id);
    for (tried = shared; tried < bytes.size(); ++tried) {
      behind[tried + 1] = behind[tried];
      if (!behind[tried + 1].add(bytes[tried])) {
        break;
      }
    }
    if (static_cast<std::size_t>(id) < may.size()) {
      may[static_cast<std::size_t>(id)] = tried == bytes.size();
    }
  }
  for (const std::int32_t id : ends) {
    may[static_cast<std::size_t>(id)] = false;
  }
  constexpr float none = -std::numeric_limits<float>::infinity();
  bool any = false;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    logits[id] = may[id] ? logits[id] : none;
    any = any || logits[id] > none;
  }
  if (!any) {
    throw ConfigError(
        "no token of the model's vocabulary goes on with the JSON that was asked for: leave 'response_format' out, or "
        "ask for texts that the vocabulary can write");
  }
}

}  // namespace orthant
