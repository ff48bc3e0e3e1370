// The part of BpeModel that reads a tokenizer.json.
#include <orthant/error.h>

#include "plugins/tokenizer/bpe_model.h"
#include "plugins/tokenizer/byte_alphabet.h"

namespace orthant {
namespace {

constexpr std::size_t pair_places = std::size_t{1} << 18;

std::string byte_token(unsigned byte) {
  return fmt::format("<0x{:02X}>", byte);
}

}  // namespace

BpeModel::BpeModel(const JsonField& model, bool byte_level) : byte_level_(byte_level), pairs_(pair_places) {
  model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = model.find("dropout"); dropout && dropout->value() != 0) {
    dropout->refuse("dropout is not implemented: ids would not be the same each time");
  }
  read_vocabulary(model.at("vocab"));
  read_options(model);
  read_merges(model.at("merges"));
}

void BpeModel::read_vocabulary(const JsonField& vocab) {
  if (!vocab.value().is_object()) {
    vocab.refuse("expected an object of tokens and ids, found {}", vocab.value().type_name());
  }
  for (const auto& [token, value] : vocab.value().items()) {
    const std::int32_t id = static_cast<std::int32_t>(vocab.at(token).integer());
    vocabulary_.emplace_back(token, id);
    if (!byte_level_) {
      ids_.emplace(token, id);
    } else if (const auto bytes = bytes_of_letters(token)) {
      ids_.emplace(*bytes, id);
    }
  }
}

// The bytes that a token stands for.
std::string BpeModel::own_text(const std::string& token, const JsonField& place) const {
  if (!byte_level_) {
    return token;
  }
  const std::optional<std::string> bytes = bytes_of_letters(token);
  if (!bytes) {
    place.refuse("'{}' has a character that stands for no byte", token);
  }
  return *bytes;
}

void BpeModel::read_options(const JsonField& model) {
  fuse_unk_ = model.flag("fuse_unk", false);
  byte_fallback_ = model.flag("byte_fallback", false);
  ignore_merges_ = model.flag("ignore_merges", false);
  for (const auto& [key, text] : {std::pair{"continuing_subword_prefix", &prefix_}, {"end_of_word_suffix", &suffix_}}) {
    if (const auto field = model.find(key)) {
      *text = own_text(field->text(), *field);
    }
  }
  if (const auto field = model.find("unk_token")) {
    for (const auto& [token, id] : vocabulary_) {
      if (token == field->text()) {
        unk_ = id;
      }
    }
    if (!unk_) {
      field->refuse("'{}' is not in the vocabulary", field->text());
    }
  }
  bool all = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto id = find(byte_level_ ? std::string(1, static_cast<char>(byte)) : byte_token(byte));
    byte_id_[byte] = id.value_or(-1);
    all = all && id.has_value();
  }
  if (byte_level_ && byte_fallback_ && !all) {
    model.at("byte_fallback").refuse("a byte-level vocabulary that lacks bytes cannot fall back on them");
  }
  falls_back_ = !byte_level_ && byte_fallback_ && all;
  // Unknown characters may become one token across a cut, so there must be none.
  can_cut_ = prefix_.empty() && suffix_.empty() && (byte_level_ ? all : falls_back_ || (!byte_fallback_ && !fuse_unk_));
}

void BpeModel::read_merges(const JsonField& merges) {
  const std::size_t count = merges.size();
  merges_ = MergeTable(count);
  for (std::size_t i = 0; i < count; ++i) {
    const JsonField field = merges.element(i);
    std::string left, right;
    if (field.value().is_array()) {
      if (field.size() != 2) {
        field.refuse("expected two tokens, found {}", field.size());
      }
      left = field.element(0).text();
      right = field.element(1).text();
    } else {
      const std::string pair = field.text();
      const std::size_t space = pair.find(' ');
      if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos) {
        field.refuse("expected two tokens and a space between them, found '{}'", pair);
      }
      left = pair.substr(0, space);
      right = pair.substr(space + 1);
    }
    left = own_text(left, field);
    right = own_text(right, field);
    if (right.size() < prefix_.size()) {
      field.refuse("the second token is shorter than continuing_subword_prefix");
    }
    const std::string both = left + right.substr(prefix_.size());
    const auto a = find(left), b = find(right), id = find(both);
    if (!a || !b || !id) {
      field.refuse("'{}' is not in the vocabulary", !a ? left : !b ? right : both);
    }
    merges_.add(*a, *b, {.rank = static_cast<std::uint32_t>(i), .id = *id});
    note_pairs(both);
    for (const std::int32_t part : {*a, *b}) {  // the bytes of a character that became tokens could be merged
      can_cut_ = can_cut_ && (byte_level_ || std::find(byte_id_.begin(), byte_id_.end(), part) == byte_id_.end());
      can_cut_ = can_cut_ && part != unk_;  // and so could what stands for unknown ones
    }
  }
}

}  // namespace orthant
