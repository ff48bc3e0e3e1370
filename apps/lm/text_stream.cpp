#include "apps/lm/text_stream.h"

#include <algorithm>
#include <utility>

#include "core/base/utf8.h"

namespace orthant {
namespace {

// Whether these bytes, which are no character, may be the beginning of one.
bool may_become_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() >= length) {
    return false;
  }
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) {
      return false;
    }
  }
  return true;
}

// The beginning of `text` that further bytes will not change: whole characters, and whole runs of bytes that are none.
std::size_t certain(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text.substr(at));
    if (length > 0) {
      at += length;
    } else if (!may_become_character(text.substr(at))) {
      ++at;
    } else {
      break;
    }
  }
  return at;
}

std::string as_utf8(std::string_view text) {
  std::string made;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      append_utf8(made, 0xFFFD);
    } else {
      made += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  return made;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::int32_t> before)
    : tokenizer_(tokenizer), ids_(std::move(before)) {
  ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(std::min(ids_.size(), context)));
  given_ = tokenizer_.decode(ids_).size();
}

std::string TextStream::rest() const {
  const std::string text = tokenizer_.decode(ids_);
  return text.substr(std::min(given_, text.size()));
}

std::string TextStream::add(std::int32_t id) {
  ids_.push_back(id);
  const std::string left = rest();
  const std::size_t whole = certain(left);
  given_ += whole;
  // Ids whose text is out do not matter to later ones, but for the last few.
  if (whole == left.size() && ids_.size() > 4 * context) {
    ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(context));
    given_ = tokenizer_.decode(ids_).size();
  }
  return as_utf8(std::string_view(left).substr(0, whole));
}

std::string TextStream::finish() {
  const std::string left = rest();
  given_ += left.size();
  return as_utf8(left);
}

}  // namespace orthant
