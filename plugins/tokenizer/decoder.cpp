#include "plugins/tokenizer/decoder.h"

#include <orthant/error.h>

#include <algorithm>
#include <optional>

#include "core/base/utf8.h"
#include "plugins/tokenizer/byte_alphabet.h"

namespace orthant {
namespace {

class FuseTokens final : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens, const TextGrowth&) const override {
    std::string all;
    for (const std::string& token : tokens) {
      all += token;
    }
    tokens = {std::move(all)};
  }
};

// Letters as the bytes that they stand for; a token with any other character as it is.
class LettersToBytes final : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens, const TextGrowth& growth) const override {
    for (std::string& token : tokens) {
      if (auto bytes = bytes_of_letters(token)) {
        token = std::move(*bytes);
      }
    }
    FuseTokens().apply(tokens, growth);
  }
};

std::optional<char> byte_of_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>' ||
      token.find_first_not_of("0123456789ABCDEFabcdef", 3) != 5) {
    return std::nullopt;
  }
  return static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16));
}

// <0xXX> as bytes. Neighbours are one token then, whether they are UTF-8 or not: bytes come back as they went in.
class BytesOfTokens final : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens, const TextGrowth&) const override {
    std::vector<std::string> result;
    bool open = false;  // the last of them takes more bytes
    for (std::string& token : tokens) {
      const std::optional<char> byte = byte_of_token(token);
      if (!byte) {
        result.push_back(std::move(token));
      } else if (open) {
        result.back() += *byte;
      } else {
        result.emplace_back(1, *byte);
      }
      open = byte.has_value();
    }
    tokens = std::move(result);
  }
};

class ReplaceInTokens final : public DecoderStep {
 public:
  ReplaceInTokens(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens, const TextGrowth& growth) const override {
    RegexWork work;
    std::size_t whole = 0;
    for (std::string& token : tokens) {
      whole += token.size();
      if (valid_utf8(token) != token.size()) {
        continue;  // bytes, not text
      }
      whole -= token.size();
      std::string result;
      pattern_.parts(token, work, [&](TextSpan part, bool is_match) {
        is_match ? result.append(content_) : result.append(token, part.begin, part.end - part.begin);
        growth.require_room(whole + result.size(), "decoder");
      });
      token = std::move(result);
      whole += token.size();
    }
  }

 private:
  Regex pattern_;
  std::string content_;
};

// Removes up to `start` characters `content` in front of each token, and up to `stop` behind it.
class StripTokens final : public DecoderStep {
 public:
  StripTokens(std::string content, std::int64_t start, std::int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens, const TextGrowth&) const override {
    for (std::string& token : tokens) {
      for (std::int64_t i = 0; i < start_ && token.starts_with(content_); ++i) {
        token.erase(0, content_.size());
      }
      for (std::int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) {
        token.resize(token.size() - content_.size());
      }
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class MetaspaceToSpaces final : public DecoderStep {
 public:
  MetaspaceToSpaces(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  void apply(std::vector<std::string>& tokens, const TextGrowth&) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string result;
      for (std::size_t at = 0; at < tokens[i].size();) {
        if (tokens[i].compare(at, replacement_.size(), replacement_) == 0) {
          result += i == 0 && prepended_ ? "" : " ";
          at += replacement_.size();
        } else {
          result += tokens[i][at++];
        }
      }
      tokens[i] = std::move(result);
    }
  }

 private:
  std::string replacement_;
  bool prepended_;
};

void add_decoder_steps(Decoder& steps, const JsonField& field) {
  const std::string type = field.at("type").text();
  if (type == "Sequence") {
    field.only({"type", "decoders"});
    const JsonField list = field.at("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) {
      add_decoder_steps(steps, list.element(i));
    }
  } else if (type == "ByteLevel") {
    field.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // of encoding, not of decoding
    steps.push_back(std::make_unique<LettersToBytes>());
  } else if (type == "ByteFallback") {
    field.only({"type"});
    steps.push_back(std::make_unique<BytesOfTokens>());
  } else if (type == "Fuse") {
    field.only({"type"});
    steps.push_back(std::make_unique<FuseTokens>());
  } else if (type == "Replace") {
    field.only({"type", "pattern", "content"});
    steps.push_back(std::make_unique<ReplaceInTokens>(read_pattern(field.at("pattern")), field.at("content").text()));
  } else if (type == "Strip") {
    field.only({"type", "content", "start", "stop"});
    const std::string content = field.at("content").text();
    if (content.empty() || utf8_length(content) != content.size()) {
      field.at("content").refuse("expected one character, found '{}'", content);
    }
    steps.push_back(std::make_unique<StripTokens>(content, field.at("start").integer(), field.at("stop").integer()));
  } else if (type == "Metaspace") {
    field.only({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    const bool add = field.flag("add_prefix_space", true);
    const std::string replacement = field.text("replacement", "\u2581");
    if (replacement.empty()) {
      field.at("replacement").refuse("it is empty");
    }
    steps.push_back(std::make_unique<MetaspaceToSpaces>(
        replacement, field.text("prepend_scheme", add ? "always" : "never") != "never"));
  } else {
    field.at("type").refuse("the decoder \"{}\" is not implemented", type);
  }
}

}  // namespace

void decode_tokens(const Decoder& decoder, std::vector<std::string>& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) {
    bytes += token.size();
  }
  const TextGrowth growth(bytes);
  for (const auto& step : decoder) {
    step->apply(tokens, growth);
  }
}

Decoder read_decoder(const JsonField& field) {
  Decoder steps;
  add_decoder_steps(steps, field);
  return steps;
}

}  // namespace orthant
