#include "plugins/tokenizer/bpe_model.h"

#include <orthant/error.h>

#include "core/base/utf8.h"

namespace orthant {
namespace {

std::size_t pair_place(std::string_view left, std::string_view right) {
  const auto code = [](std::string_view text) {
    std::uint32_t value = 0;
    for (const char c : text) {
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  };
  const std::uint64_t both = std::uint64_t{code(left)} << 32 | code(right);
  return static_cast<std::size_t>((both * 0x9e3779b97f4a7c15u) >> 46);  // below pair_places
}

}  // namespace

std::optional<std::int32_t> BpeModel::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

// Bytes of the character that `text` begins with. REQUIRES: text is not empty.
std::size_t BpeModel::unit(std::string_view text) const {
  return byte_level_ ? 1 : std::max<std::size_t>(1, utf8_length(text));
}

void BpeModel::note_pairs(std::string_view token) {
  for (std::size_t left = unit(token); !token.empty() && left < token.size();) {
    const std::string_view rest = token.substr(left);
    const std::size_t right = unit(rest);
    pairs_[pair_place(token.substr(0, left), rest.substr(0, right))] = true;
    token = rest;
    left = right;
  }
}

// The first place behind `begin` where the word can be cut, or its end.
std::size_t BpeModel::part_end(std::string_view word, std::size_t begin) const {
  std::size_t left = unit(word.substr(begin));
  while (begin + left < word.size()) {
    const std::string_view rest = word.substr(begin + left);
    const std::size_t right = unit(rest);
    if (!pairs_[pair_place(word.substr(begin, left), rest.substr(0, right))]) {
      break;
    }
    begin += left;
    left = right;
  }
  return begin + left;
}

void BpeModel::encode(std::string_view word, std::vector<std::int32_t>& ids, BpeWork& work) const {
  constexpr bool whole = true;
  if (word.size() <= WordCache::longest_word) {
    const WordCache::Found found = work.cache.find(word, whole);
    if (found.hit) {
      ids.insert(ids.end(), found.ids.begin(), found.ids.end());
      return;
    }
    const std::optional<std::int32_t> id = ignore_merges_ ? find(word) : std::nullopt;
    if (id) {
      work.tokens.assign(1, *id);
    } else {
      first_tokens(word, work);
      merges_.apply(work.tokens, work.merge);
    }
    ids.insert(ids.end(), work.tokens.begin(), work.tokens.end());
    work.cache.put(found.hash, word, whole, work.tokens);
    return;
  }
  if (const auto id = ignore_merges_ ? find(word) : std::nullopt; id) {
    ids.push_back(*id);
    return;
  }
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t end = can_cut_ ? part_end(word, begin) : word.size();
    encode_part(word.substr(begin, end - begin), ids, work);
    begin = end;
  }
}

// A part of a long word: as a word, but never a token by ignore_merges.
void BpeModel::encode_part(std::string_view part, std::vector<std::int32_t>& ids, BpeWork& work) const {
  constexpr bool whole = false;
  const bool cached = part.size() <= WordCache::longest_word;
  WordCache::Found found{};
  if (cached && (found = work.cache.find(part, whole)).hit) {
    ids.insert(ids.end(), found.ids.begin(), found.ids.end());
    return;
  }
  first_tokens(part, work);
  merges_.apply(work.tokens, work.merge);
  ids.insert(ids.end(), work.tokens.begin(), work.tokens.end());
  if (cached) {
    work.cache.put(found.hash, part, whole, work.tokens);
  }
}

// Tokens of the bytes of a character; false: not all of them have one.
bool BpeModel::fall_back(std::string_view character, std::vector<std::int32_t>& tokens) const {
  const std::size_t before = tokens.size();
  for (const char c : character) {
    const std::int32_t id = byte_id_[static_cast<unsigned char>(c)];
    if (id < 0) {
      tokens.resize(before);
      return false;
    }
    tokens.push_back(id);
  }
  return true;
}

// A token for each character, before any merge: work.tokens.
void BpeModel::first_tokens(std::string_view word, BpeWork& work) const {
  std::vector<std::int32_t>& tokens = work.tokens;
  tokens.clear();
  if (byte_level_ && prefix_.empty() && suffix_.empty() && fall_back(word, tokens)) {
    return;
  }
  bool unknown = false;  // the unk token of characters before is not written yet
  const auto write_unknown = [&] {
    if (unknown) {
      tokens.push_back(*unk_);
      unknown = false;
    }
  };
  for (std::size_t at = 0, size = 0; at < word.size(); at += size) {
    size = unit(word.substr(at));
    const std::string_view character = word.substr(at, size);
    work.text = at > 0 ? prefix_ : "";
    work.text += character;
    work.text += at + size == word.size() ? suffix_ : "";
    if (const auto id = find(work.text)) {
      write_unknown();
      tokens.push_back(*id);
    } else if (byte_fallback_ && fall_back(work.text, tokens)) {
      continue;  // an unk token that waits comes behind these, as in the library
    } else {
      require(unk_.has_value(), "the tokenizer has no token for '{}', and its file names no unk_token", character);
      if (!fuse_unk_) {
        write_unknown();
      }
      unknown = true;
    }
  }
  write_unknown();
}

}  // namespace orthant
