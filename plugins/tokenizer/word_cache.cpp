#include "plugins/tokenizer/word_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace orthant {
namespace {

constexpr std::size_t slot_count = 1 << 17;  // 3 MB; texts and ids of most words are 1 MB more, and never above 21 MB
constexpr std::size_t most_words = slot_count / 2;

}  // namespace

WordCache::WordCache() : slots_(slot_count) {}

WordCache::Found WordCache::find(std::string_view word, bool kind) const {
  const std::uint64_t hash = XXH3_64bits(word.data(), word.size()) + (kind ? 1 : 0);
  for (std::size_t at = hash & (slot_count - 1);; at = (at + 1) & (slot_count - 1)) {
    const Slot& slot = slots_[at];
    if (slot.size == 0) {
      return {hash, false, {}};
    }
    if (slot.hash == hash && slot.size == word.size() && slot.kind == kind &&
        std::memcmp(text_.data() + slot.text, word.data(), word.size()) == 0) {
      return {hash, true, {ids_.data() + slot.first, slot.count}};
    }
  }
}

void WordCache::put(std::uint64_t hash, std::string_view word, bool kind, std::span<const std::int32_t> ids) {
  if (word.empty() || word.size() > longest_word || ids.size() > longest_word) {
    return;
  }
  if (used_ == most_words) {
    clear();
  }
  std::size_t at = hash & (slot_count - 1);
  while (slots_[at].size != 0) {
    at = (at + 1) & (slot_count - 1);
  }
  slots_[at] = {.hash = hash,
                .text = static_cast<std::uint32_t>(text_.size()),
                .first = static_cast<std::uint32_t>(ids_.size()),
                .count = static_cast<std::uint16_t>(ids.size()),
                .size = static_cast<std::uint8_t>(word.size()),
                .kind = kind};
  text_.insert(text_.end(), word.begin(), word.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

void WordCache::clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  text_.clear();
  ids_.clear();
  used_ = 0;
}

}  // namespace orthant
