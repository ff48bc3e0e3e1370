#include "plugins/tokenizer/sentencepiece_json.h"

#include <orthant/error.h>

#include <algorithm>
#include <set>

#include "core/base/json.h"
#include "core/base/utf8.h"

namespace orthant {
namespace {

using Piece = SentencePieceFile::Piece;
using Type = SentencePieceFile::Type;

constexpr const char* space_sign = "\u2581";  // SentencePiece's letter for a space

std::size_t characters_in(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// A normal piece's character that is no piece: SentencePiece makes the piece of it, the tokenizers library cannot.
std::string character_without_piece(const SentencePieceFile& file) {
  std::set<std::string_view> known;
  for (const Piece& piece : file.pieces) {
    if (piece.is_text()) {
      known.insert(piece.text);
    }
  }
  for (const Piece& piece : file.pieces) {
    std::string_view rest = piece.text;
    for (; piece.type == Type::normal && !rest.empty(); rest.remove_prefix(utf8_length(rest))) {
      if (!known.contains(rest.substr(0, utf8_length(rest)))) {
        return piece.text;
      }
    }
  }
  return "";
}

// Of pieces with one score SentencePiece merges the leftmost, the tokenizers library that of the lower rank.
bool merges_are_ordered(const SentencePieceFile& file) {
  std::set<float> scores;
  return std::all_of(file.pieces.begin(), file.pieces.end(), [&](const Piece& piece) {
    return piece.type != Type::normal || characters_in(piece.text) < 2 || scores.insert(piece.score).second;
  });
}

std::string base64(std::string_view bytes) {
  static constexpr char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      three = three << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += at + i > bytes.size() ? '=' : alphabet[three >> (18 - 6 * i) & 63];
    }
  }
  return text;
}

Json replace(const char* kind, const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

Json normalizer_of(const SentencePieceFile& file) {
  Json steps = Json::array();
  if (!file.charsmap.empty()) {
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64(file.charsmap)}});
  }
  if (file.remove_extra_whitespaces) {
    steps.push_back(replace("Regex", "\\A +", ""));
    steps.push_back(replace("Regex", " {2,}", " "));
    steps.push_back(replace("Regex", fmt::format("[ {}]+\\z", space_sign), ""));
  }
  if (file.add_dummy_prefix) {
    steps.push_back({{"type", "Prepend"}, {"prepend", space_sign}});
  }
  steps.push_back(replace("String", " ", space_sign));
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json decoder_of(const SentencePieceFile& file) {
  Json steps = Json::array({replace("String", space_sign, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (file.add_dummy_prefix || file.remove_extra_whitespaces) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", steps}};
}

// Each way to make a piece of two, the better piece first.
Json merges_of(const SentencePieceFile& file) {
  std::set<std::string_view> normal;
  std::vector<const Piece*> order;
  for (const Piece& piece : file.pieces) {
    if (piece.type == Type::normal) {
      normal.insert(piece.text);
      order.push_back(&piece);
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const Piece* a, const Piece* b) { return a->score > b->score; });
  Json merges = Json::array();
  for (const Piece* piece : order) {
    const std::string_view text = piece->text;
    for (std::size_t at = utf8_length(text); at < text.size(); at += utf8_length(text.substr(at))) {
      if (normal.contains(text.substr(0, at)) && normal.contains(text.substr(at))) {
        merges.push_back({text.substr(0, at), text.substr(at)});
      }
    }
  }
  return merges;
}

std::string unknown_piece(const SentencePieceFile& file) {
  const auto found = std::find_if(file.pieces.begin(), file.pieces.end(),
                                  [](const Piece& piece) { return piece.type == Type::unknown; });
  return found->text;
}

Json bpe_model(const SentencePieceFile& file) {
  Json vocabulary = Json::object();
  for (const Piece& piece : file.pieces) {
    vocabulary.emplace(piece.text, vocabulary.size());
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unknown_piece(file)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", file.count(Type::byte) > 0},
          // A user-defined piece is a word of its own, and no merge makes it.
          {"ignore_merges", file.count(Type::user_defined) > 0},
          {"vocab", std::move(vocabulary)},
          {"merges", merges_of(file)}};
}

// The library looks for every piece in the text. Those that SentencePiece does not look for get a score that is worse
// than that of their characters, those that it always takes a better one.
Json unigram_model(const SentencePieceFile& file) {
  double lowest = 0;
  std::size_t longest = 0;
  std::size_t unknown = 0;
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    const Piece& piece = file.pieces[id];
    lowest = piece.type == Type::normal ? std::min<double>(lowest, piece.score) : lowest;
    longest = piece.is_text() ? longest : std::max(longest, characters_in(piece.text));
    unknown = piece.type == Type::unknown ? id : unknown;
  }
  Json vocabulary = Json::array();
  for (const Piece& piece : file.pieces) {
    const double score = piece.type == Type::normal         ? static_cast<double>(piece.score)
                         : piece.type == Type::user_defined ? -0.1
                                                            : (lowest - 1) * static_cast<double>(longest + 1);
    vocabulary.push_back({piece.text, score});
  }
  return {{"type", "Unigram"},
          {"unk_id", unknown},
          {"vocab", std::move(vocabulary)},
          {"byte_fallback", file.count(Type::byte) > 0}};
}

// Cuts user-defined pieces out, the longest at each place, as SentencePiece does. They are no added tokens: what lies
// between those is normalized by itself, and would get a space in front.
Json pre_tokenizer_of(const SentencePieceFile& file) {
  std::vector<std::string> texts;
  for (const Piece& piece : file.pieces) {
    if (piece.type == Type::user_defined) {
      texts.push_back(piece.text);
    }
  }
  if (texts.empty() || file.model == SentencePieceFile::Model::unigram) {
    return nullptr;
  }
  std::stable_sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::string pattern;
  for (const std::string& text : texts) {
    pattern += pattern.empty() ? "" : "|";
    for (const char c : text) {
      pattern += std::string_view("\\|()[]{}^$*+?.#&-~").find(c) != std::string_view::npos ? "\\" : "";
      pattern += c;
    }
  }
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Json added_tokens(const SentencePieceFile& file) {
  Json tokens = Json::array();
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    const Piece& piece = file.pieces[id];
    if (piece.type == Type::unknown || piece.type == Type::control) {
      tokens.push_back({{"id", id},
                        {"content", piece.text},
                        {"single_word", false},
                        {"lstrip", false},
                        {"rstrip", false},
                        {"normalized", false},
                        {"special", true}});
    }
  }
  return tokens;
}

// bos before each text, where the configuration asks for it.
Json post_processor_of(const SentencePieceFile& file, const SpecialTokens& special) {
  if (!special.bos_first) {
    return nullptr;
  }
  const std::string bos = file.pieces[static_cast<std::size_t>(*special.bos)].text;
  const auto put_bos = [&](int type) { return Json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
  const auto put_text = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", Json::array({put_bos(0), put_text("A", 0)})},
      {"pair", Json::array({put_bos(0), put_text("A", 0), put_bos(1), put_text("B", 1)})},
      {"special_tokens", {{bos, {{"id", bos}, {"ids", Json::array({*special.bos})}, {"tokens", Json::array({bos})}}}}}};
}

}  // namespace

std::string why_no_json(const SentencePieceFile& file) {
  const bool bpe = file.model == SentencePieceFile::Model::bpe;
  if (!bpe && file.model != SentencePieceFile::Model::unigram) {
    return "it is a model of words or characters";
  }
  if (file.space_behind_words || !file.escape_whitespaces) {
    return "it writes spaces behind words, or as they are";
  }
  if (file.changes_decoded_text) {
    return "it has rules for decoded text";
  }
  if (file.count(Type::unused) > 0) {
    return "it has unused pieces";
  }
  if (file.count(Type::unknown) != 1) {
    return "it has no piece for the unknown, or several";
  }
  if (const std::int64_t bytes = file.count(Type::byte); bytes != 0 && bytes != 256) {
    return fmt::format("it has pieces for {} of the 256 bytes", bytes);
  }
  std::set<std::string_view> seen;
  for (const Piece& piece : file.pieces) {
    if (piece.text.empty() || valid_utf8(piece.text) != piece.text.size() || !seen.insert(piece.text).second) {
      return "a piece is empty, no UTF-8 or there twice";
    }
    const bool has_space =
        piece.text.find(' ') != std::string::npos || piece.text.find(space_sign) != std::string::npos;
    const bool ascii = characters_in(piece.text) == piece.text.size();
    if (piece.type == Type::user_defined &&
        ((file.remove_extra_whitespaces && has_space) || (!file.charsmap.empty() && !ascii))) {
      return fmt::format("its normalizer would change the user-defined piece '{}'", piece.text);
    }
  }
  if (const std::string piece = character_without_piece(file); !piece.empty()) {
    return fmt::format("a character of the piece '{}' is no piece", piece);
  }
  return bpe && !merges_are_ordered(file) ? "two pieces have one score" : "";
}

nlohmann::ordered_json sentencepiece_json(const SentencePieceFile& file, const SpecialTokens& special) {
  const bool bpe = file.model == SentencePieceFile::Model::bpe;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens(file)},
          {"normalizer", normalizer_of(file)},
          {"pre_tokenizer", pre_tokenizer_of(file)},
          {"post_processor", post_processor_of(file, special)},
          {"decoder", decoder_of(file)},
          {"model", bpe ? bpe_model(file) : unigram_model(file)}};
}

}  // namespace orthant
