#include "core/tokenizer/special_texts.h"

#include <utility>

namespace orthant {

SpecialTexts::SpecialTexts(const Tokenizer& tokenizer, std::vector<std::string> texts)
    : tokenizer_(tokenizer), texts_(std::move(texts)), encoder_(tokenizer.encoder()) {}

std::string_view SpecialTexts::found(std::string_view text, std::size_t at) const {
  for (const std::string& special : texts_) {
    if (text.substr(at, special.size()) == special) {
      return special;
    }
  }
  return {};
}

std::vector<std::int32_t> SpecialTexts::behind(std::string_view special, const std::string& text) {
  std::vector<std::int32_t> ids;
  if (!special.empty()) {
    encoder_->encode(std::string(special) + text, ids);
    if (!ids.empty() && ids.front() == *tokenizer_.id_of(special)) {
      ids.erase(ids.begin());
      return ids;
    }
    ids.clear();
  }
  encoder_->encode(text, ids);
  return ids;
}

void SpecialTexts::encode(std::string_view text, std::vector<std::int32_t>& ids) {
  std::string_view last;
  std::size_t begin = 0;
  const auto put = [&](std::size_t end) {
    if (end > begin) {
      const std::vector<std::int32_t> more = behind(last, std::string(text.substr(begin, end - begin)));
      ids.insert(ids.end(), more.begin(), more.end());
    }
  };
  for (std::size_t at = 0; at < text.size() && !texts_.empty();) {
    const std::string_view special = found(text, at);
    if (special.empty()) {
      ++at;
      continue;
    }
    put(at);
    ids.push_back(*tokenizer_.id_of(special));
    last = special;
    begin = at += special.size();
  }
  put(text.size());
}

}  // namespace orthant
