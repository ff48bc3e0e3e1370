#include "plugins/tokenizer/sentencepiece_file.h"

#include <orthant/error.h>

#include <algorithm>
#include <bit>
#include <optional>

namespace orthant {
namespace {

[[noreturn]] void refuse_ending(const char* what) {
  throw ConfigError(fmt::format("a SentencePiece model ends in the middle of {}: the file is damaged", what));
}

// The fields of a message, one after another, as Protocol Buffers write them.
class ProtoMessage {
 public:
  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;   // of a number; the bits of a fixed one
    std::string_view bytes{};  // of a text or message
    float as_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(value)); }
  };

  explicit ProtoMessage(std::string_view bytes) : rest_(bytes) {}

  std::optional<Field> next() {
    if (rest_.empty()) {
      return std::nullopt;
    }
    const std::uint64_t tag = varint();
    Field field{.number = tag >> 3};
    switch (tag & 7) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: field.value = fixed(4); break;
      default: throw ConfigError(fmt::format("a SentencePiece model has a field of the unknown kind {}", tag & 7));
    }
    return field;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint64_t byte = fixed(1);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    refuse_ending("a number");
  }
  std::uint64_t fixed(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view taken = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    }
    return value;
  }
  std::string_view take(std::uint64_t bytes) {
    if (bytes > rest_.size()) {
      refuse_ending("a field");
    }
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
};

SentencePieceFile::Piece read_piece(std::string_view bytes) {
  SentencePieceFile::Piece piece;
  ProtoMessage message(bytes);
  while (const auto field = message.next()) {
    switch (field->number) {
      case 1: piece.text = field->bytes; break;
      case 2: piece.score = field->as_float(); break;
      case 3: piece.type = static_cast<SentencePieceFile::Type>(field->value); break;
      default: break;
    }
  }
  return piece;
}

void read_trainer(std::string_view bytes, SentencePieceFile& file) {
  ProtoMessage message(bytes);
  while (const auto field = message.next()) {
    switch (field->number) {
      case 3: file.model = static_cast<SentencePieceFile::Model>(field->value); break;
      case 24: file.space_behind_words = field->value != 0; break;
      default: break;
    }
  }
}

void read_rules(std::string_view bytes, SentencePieceFile& file) {
  ProtoMessage message(bytes);
  while (const auto field = message.next()) {
    switch (field->number) {
      case 2: file.charsmap = field->bytes; break;
      case 3: file.add_dummy_prefix = field->value != 0; break;
      case 4: file.remove_extra_whitespaces = field->value != 0; break;
      case 5: file.escape_whitespaces = field->value != 0; break;
      default: break;
    }
  }
}

}  // namespace

std::int64_t SentencePieceFile::count(Type type) const {
  return std::count_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.type == type; });
}

SentencePieceFile read_sentencepiece_file(std::string_view bytes) {
  SentencePieceFile file;
  ProtoMessage message(bytes);
  while (const auto field = message.next()) {
    switch (field->number) {
      case 1: file.pieces.push_back(read_piece(field->bytes)); break;
      case 2: read_trainer(field->bytes, file); break;
      case 3: read_rules(field->bytes, file); break;
      case 5: {
        SentencePieceFile decoding;
        read_rules(field->bytes, decoding);
        file.changes_decoded_text = !decoding.charsmap.empty();
        break;
      }
      default: break;
    }
  }
  return file;
}

}  // namespace orthant
