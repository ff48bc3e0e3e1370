#include "plugins/tokenizer/hugging_face_files.h"

#include <orthant/error.h>

#include <algorithm>
#include <functional>

#include "core/base/json.h"
#include "plugins/tokenizer/published_tokenizer.h"
#include "plugins/tokenizer/sentencepiece_file.h"
#include "plugins/tokenizer/sentencepiece_json.h"

namespace orthant {
namespace {

// A normal piece that its characters are not merged to; empty: there is none. By ignore_merges it would be the token of
// a word that SentencePiece cuts.
std::string piece_without_merges(const SentencePieceFile& file, nlohmann::ordered_json json) {
  json["normalizer"] = json["pre_tokenizer"] = nullptr;
  json["model"]["ignore_merges"] = false;
  const auto merging = parse_tokenizer_json("a check", json.dump());
  for (std::size_t id = 0; id < file.pieces.size(); ++id) {
    const SentencePieceFile::Piece& piece = file.pieces[id];
    if (piece.type == SentencePieceFile::Type::normal &&
        merging->encode(piece.text) != std::vector{static_cast<std::int32_t>(id)}) {
      return piece.text;
    }
  }
  return "";
}

// A text that our own reader of the file cuts otherwise than SentencePiece; empty: none of those tried.
std::string other_ids(const Tokenizer& sentencepiece, const SentencePieceFile& file, const std::string& json) {
  const auto written = parse_tokenizer_json("a check", json);
  const auto theirs = sentencepiece.encoder(), ours = written->encoder();
  std::uint32_t state = 1;
  const auto any = [&]() -> std::string {
    state = state * 1664525u + 1013904223u;
    const SentencePieceFile::Piece& piece = file.pieces[(state >> 8) % file.pieces.size()];
    return piece.is_text() ? piece.text : " ";
  };
  std::vector<std::string> special;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (piece.type == SentencePieceFile::Type::control || piece.type == SentencePieceFile::Type::unknown) {
      special.push_back(piece.text);
    }
  }
  std::vector<std::int32_t> expected, found;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (!piece.is_text()) {
      continue;
    }
    // Alone, and twice with others around it: there its parts have other neighbours to be merged with.
    for (const std::string& text : {piece.text, any() + piece.text + any() + piece.text + piece.text}) {
      expected.clear();
      found.clear();
      theirs->encode(text, expected);
      ours->encode(text, found);
      // A text that happens to spell the name of a special piece is that one in a tokenizer.json.
      const auto is_in_text = [&](const std::string& name) { return text.find(name) != std::string::npos; };
      if (expected != found && std::none_of(special.begin(), special.end(), is_in_text)) {
        return text;
      }
    }
  }
  return "";
}

nlohmann::ordered_json config_with(const SpecialTokens& special,
                                   const std::function<std::string(std::int32_t id)>& text_of) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"add_bos_token", special.bos_first},
                                   {"add_eos_token", false},
                                   {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, id] : {std::pair{"bos_token", special.bos},
                                {"eos_token", special.eos},
                                {"unk_token", special.unk},
                                {"pad_token", special.pad}}) {
    if (id.has_value()) {
      config[key] = text_of(*id);
    }
  }
  return config;
}

std::string config_of(const Tokenizer& sentencepiece, const SentencePieceFile& file, const std::string& json,
                      bool has_template) {
  nlohmann::ordered_json config = config_with(
      sentencepiece.special(), [&](std::int32_t id) { return file.pieces[static_cast<std::size_t>(id)].text; });
  for (const TokenizerFile& beside : sentencepiece.files()) {
    if (beside.name != tokenizer_config_file) {
      continue;
    }
    const Json given = Json::parse(beside.bytes);
    for (const char* key : {"chat_template", "model_max_length"}) {
      if (given.contains(key)) {
        config[key] = given.at(key);
      }
    }
  }
  // SentencePiece reads the name of a special token as any other text. A chat_template writes such names and means the
  // tokens.
  config["split_special_tokens"] = !has_template && !config.contains("chat_template");
  config[made_of_model_key] = made_of_model_hash(json);
  return config.dump(2) + "\n";
}

}  // namespace

HuggingFaceFiles hugging_face_files(const Tokenizer& sentencepiece, bool has_template) {
  const SentencePieceFile file = read_sentencepiece_file(sentencepiece.files().front().bytes);
  const auto none = [](const std::string& why) {
    return HuggingFaceFiles{
        {},
        {fmt::format("tokenizer.model is written without a tokenizer.json, as none has the same ids: {}. "
                     "transformers makes one of the .model by itself: compare its ids before you use it",
                     why)}};
  };
  if (const std::string why = why_no_json(file); !why.empty()) {
    return none(why);
  }
  const bool bpe = file.model == SentencePieceFile::Model::bpe;
  const nlohmann::ordered_json json = sentencepiece_json(file, sentencepiece.special());
  const std::string text = json.dump();
  if (bpe && file.count(SentencePieceFile::Type::user_defined) > 0) {
    if (const std::string piece = piece_without_merges(file, json); !piece.empty()) {
      return none(fmt::format("it has user-defined pieces, and one that its merges do not reach, '{}'", piece));
    }
  }
  if (bpe && file.charsmap.empty()) {  // what our reader can check
    if (const std::string other = other_ids(sentencepiece, file, text); !other.empty()) {
      return none(fmt::format("'{}' would be cut otherwise", other));
    }
  }
  HuggingFaceFiles made{
      {{"tokenizer.json", text}, {tokenizer_config_file, config_of(sentencepiece, file, text, has_template)}}, {}};
  if (!file.charsmap.empty()) {
    made.notes.push_back(
        "the tokenizer has rules that change characters (nmt_nfkc, for one), which transformers applies by its own way "
        "of cutting: texts with combining marks can get other ids there");
  }
  return made;
}

nlohmann::ordered_json minimal_tokenizer_config(const Tokenizer& tokenizer) {
  return config_with(tokenizer.special(), [&](std::int32_t id) { return tokenizer.decode(std::vector{id}); });
}

}  // namespace orthant
