// BpeModel: words as ids by byte pair encoding, as the tokenizers library does it.
//
// Internal to plugins/tokenizer: include it from .cpp files only. Thread safety: constant; a BpeWork belongs to one
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plugins/tokenizer/json_field.h"
#include "plugins/tokenizer/merge_table.h"
#include "plugins/tokenizer/word_cache.h"

namespace orthant {

struct BpeWork {
  WordCache cache;
  MergeWork merge;
  std::vector<std::int32_t> tokens;
  std::string text;
};

class BpeModel {
 public:
  // `byte_level`: the vocabulary's characters stand for bytes, and a word is bytes. Errors: ConfigError naming the
  // place.
  BpeModel(const JsonField& model, bool byte_level);

  // Appends the ids of a word. REQUIRES: UTF-8, unless takes_bytes(). Errors: Error for a character that the vocabulary
  // has no token for, where the file names no unk_token.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, BpeWork& work) const;
  // Whether bytes that are no UTF-8 have ids too.
  bool takes_bytes() const { return byte_level_ || falls_back_; }

  // Tokens as the file writes them.
  const std::vector<std::pair<std::string, std::int32_t>>& vocabulary() const { return vocabulary_; }
  std::optional<std::int32_t> unk() const { return unk_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  void read_vocabulary(const JsonField& vocab);
  void read_options(const JsonField& model);
  void read_merges(const JsonField& merges);
  void note_pairs(std::string_view token);
  std::optional<std::int32_t> find(std::string_view token) const;
  std::string own_text(const std::string& token, const JsonField& place) const;

  void encode_part(std::string_view part, std::vector<std::int32_t>& ids, BpeWork& work) const;
  void first_tokens(std::string_view word, BpeWork& work) const;
  bool fall_back(std::string_view character, std::vector<std::int32_t>& tokens) const;
  std::size_t unit(std::string_view text) const;
  std::size_t part_end(std::string_view word, std::size_t begin) const;

  bool byte_level_;
  bool byte_fallback_ = false, fuse_unk_ = false, ignore_merges_ = false;
  bool falls_back_ = false;      // every byte has a token <0xXX>
  std::string prefix_, suffix_;  // of characters that do not begin a word, that end one
  std::optional<std::int32_t> unk_;
  std::vector<std::pair<std::string, std::int32_t>> vocabulary_;
  // By the bytes that they stand for; of a byte-level model the tokens that stand for none are left out.
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
  std::array<std::int32_t, 256> byte_id_;  // of the byte, if byte_level_, else of <0xXX>; -1: none
  MergeTable merges_{0};
  // Pairs of characters that stand next to each other in what some merge makes. Between two others a word can be cut:
  // nothing is merged across. A place that several pairs share only means fewer cuts.
  std::vector<bool> pairs_;
  bool can_cut_ = true;
};

}  // namespace orthant
