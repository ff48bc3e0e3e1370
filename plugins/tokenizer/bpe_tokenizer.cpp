#include "plugins/tokenizer/bpe_tokenizer.h"

#include <orthant/error.h>

#include <algorithm>

#include "core/base/utf8.h"

namespace orthant {

class BpeEncoder final : public Encoder {
 public:
  explicit BpeEncoder(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    for (std::size_t at = 0; at < text.size();) {
      const std::string_view rest = text.substr(at);
      std::size_t size = valid_utf8(rest);
      if (size > 0) {
        encode_text(rest.substr(0, size), at == 0, ids);
      } else {
        while (size < rest.size() && utf8_length(rest.substr(size)) == 0) {
          ++size;
        }
        require(tokenizer_.model_->takes_bytes(),
                "tokenizer '{}': byte {} of a text is no UTF-8, and the vocabulary has no tokens for single bytes",
                tokenizer_.name(), at);
        tokenizer_.model_->encode(rest.substr(0, size), ids, model_);
      }
      at += size;
    }
  }

 private:
  void encode_text(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) {
    tokenizer_.plain_.sections(text, [&](TextSpan span, const AddedToken* token) {
      if (token != nullptr) {
        ids.push_back(token->id);
      } else {
        encode_section(text.substr(span.begin, span.end - span.begin), at_start && span.begin == 0, ids);
      }
    });
  }

  void encode_section(std::string_view section, bool at_start, std::vector<std::int32_t>& ids) {
    if (!tokenizer_.normalizer_.empty()) {
      text_.assign(section);
      normalize(tokenizer_.normalizer_, text_, normalizer_);
      section = text_;
    }
    tokenizer_.normalized_.sections(section, [&](TextSpan span, const AddedToken* token) {
      if (token != nullptr) {
        ids.push_back(token->id);
        return;
      }
      cut_pieces(tokenizer_.pre_tokenizer_, section.substr(span.begin, span.end - span.begin),
                 at_start && span.begin == 0, pieces_);
      for (const TextSpan piece : pieces_.pieces) {
        tokenizer_.model_->encode(pieces_.text.substr(piece.begin, piece.end - piece.begin), ids, model_);
      }
    });
  }

  const BpeTokenizer& tokenizer_;
  NormalizerWork normalizer_;
  PieceWork pieces_;
  BpeWork model_;
  std::string text_;
};

std::unique_ptr<Encoder> BpeTokenizer::encoder() const {
  return std::make_unique<BpeEncoder>(*this);
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const bool known = id >= 0 && id < vocabulary() && tokens_[static_cast<std::size_t>(id)].has_value();
    require(known, "tokenizer '{}': no token has the id {}", name(), id);
    tokens.push_back(*tokens_[static_cast<std::size_t>(id)]);
  }
  decode_tokens(decoder_, tokens);
  return fmt::format("{}", fmt::join(tokens, has_decoder_ ? "" : " "));
}

std::optional<std::int32_t> BpeTokenizer::id_of(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace orthant
