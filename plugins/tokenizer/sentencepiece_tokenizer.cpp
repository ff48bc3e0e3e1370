#include "plugins/tokenizer/sentencepiece_tokenizer.h"

#include <orthant/error.h>
#include <sentencepiece_processor.h>

#include <algorithm>

#include "plugins/tokenizer/json_field.h"
#include "plugins/tokenizer/published_tokenizer.h"

namespace orthant {
namespace {

// Of "<0xE2>".
char byte_of(const std::string& piece) {
  return static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& name, std::vector<TokenizerFile> model_and_config, const Json& config)
      : Tokenizer(name, std::move(model_and_config)) {
    const auto status = processor_.LoadFromSerializedProto(files().front().bytes);
    if (!status.ok() || processor_.GetPieceSize() < 1) {
      throw ConfigError(fmt::format(
          "tokenizer '{}': it is no SentencePiece model, or damaged. Give the tokenizer.model that was published, or a "
          "tokenizer.json",
          name));
    }
    const auto put = [](std::optional<std::int32_t>& place, int id) {
      if (id >= 0) {
        place = id;
      }
    };
    put(special_.bos, processor_.bos_id());
    put(special_.eos, processor_.eos_id());
    put(special_.unk, processor_.unk_id());
    put(special_.pad, processor_.pad_id());
    if (!config.is_null()) {
      special_ = read_special(JsonField(config, name + ", tokenizer_config.json"), *this, special_);
    }
  }

  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<Own>(*this); }

  std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < vocabulary(), "tokenizer '{}': no token has the id {}", name(), id);
    }
    const std::vector<int> pieces(ids.begin(), ids.end());
    std::string text;
    if (std::none_of(pieces.begin(), pieces.end(), [&](int id) { return processor_.IsByte(id); })) {
      const auto status = processor_.Decode(pieces, &text);
      require(status.ok(), "tokenizer '{}': its tokens cannot be decoded: is the file damaged?", name());
      return text;
    }
    // The library makes U+FFFD of bytes that are no character, or none yet.
    const auto decoded = processor_.DecodeIdsAsImmutableProto(pieces);
    require(decoded.pieces_size() == pieces.size(), "tokenizer '{}': it decodes {} tokens as {}", name(), pieces.size(),
            decoded.pieces_size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (processor_.IsByte(pieces[i])) {
        text += byte_of(processor_.IdToPiece(pieces[i]));
      } else {
        text += decoded.pieces(static_cast<int>(i)).surface();
      }
    }
    return text;
  }

  std::optional<std::int32_t> id_of(std::string_view token) const override {
    const int id = processor_.PieceToId(token);  // an unknown piece has the id of unk
    return id >= 0 && processor_.IdToPiece(id) == token ? std::optional<std::int32_t>(id) : std::nullopt;
  }

  std::int64_t vocabulary() const override { return processor_.GetPieceSize(); }

  std::vector<std::string> unread_tokens() const override {
    std::vector<std::string> tokens;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id)) {
        tokens.push_back(processor_.IdToPiece(id));
      }
    }
    return tokens;
  }

 private:
  class Own final : public Encoder {
   public:
    explicit Own(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
      const auto status = tokenizer_.processor_.Encode(text, &pieces_);
      require(status.ok(), "tokenizer '{}': a text of {} bytes cannot be encoded: is the file damaged?",
              tokenizer_.name(), text.size());
      ids.insert(ids.end(), pieces_.begin(), pieces_.end());
    }

   private:
    const SentencePieceTokenizer& tokenizer_;
    std::vector<int> pieces_;
  };

  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(const std::string& name, std::vector<TokenizerFile> files,
                                                              const Json& config) {
  return std::make_shared<SentencePieceTokenizer>(name, std::move(files), config);
}

}  // namespace orthant
