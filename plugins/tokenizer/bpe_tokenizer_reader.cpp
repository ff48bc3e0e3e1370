// The part of BpeTokenizer that reads a tokenizer.json.
#include <orthant/error.h>

#include <algorithm>
#include <set>

#include "plugins/tokenizer/bpe_tokenizer.h"
#include "plugins/tokenizer/published_tokenizer.h"

namespace orthant {
namespace {

constexpr std::size_t most_holes = 65536;  // ids below the largest one without a token

AddedToken read_added_token(const JsonField& field) {
  field.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token{.content = field.at("content").text(), .id = static_cast<std::int32_t>(field.at("id").integer())};
  token.single_word = field.flag("single_word", false);
  token.lstrip = field.flag("lstrip", false);
  token.rstrip = field.flag("rstrip", false);
  token.special = field.flag("special", false);
  token.normalized = field.flag("normalized", !token.special);
  return token;
}

// Before anything else: what a model of another kind asks for has names of its own.
void require_bpe(const JsonField& root) {
  const JsonField model = root.at("model");
  const std::string type = model.text("type", "BPE");
  if (type != "BPE") {
    model.at("type").refuse("the model \"{}\" is not read, only \"BPE\"; {}", type,
                            type == "Unigram"
                                ? "where a SentencePiece .model was published with it, give that"
                                : "give another tokenizer, or token files made elsewhere (data.source = \"tokens\")");
  }
}

}  // namespace

BpeTokenizer::BpeTokenizer(const std::string& name, std::vector<TokenizerFile> files, const Json& json,
                           const Json& config)
    : Tokenizer(name, std::move(files)) {
  const JsonField root(json, name);
  require_bpe(root);
  root.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  for (const char* key : {"truncation", "padding"}) {
    if (const auto field = root.find(key)) {
      field->refuse("a tokenizer that changes the length of texts is not implemented: write null");
    }
  }
  if (const auto field = root.find("normalizer")) {
    normalizer_ = read_normalizer(*field);
  }
  if (const auto field = root.find("pre_tokenizer")) {
    pre_tokenizer_ = read_pre_tokenizer(*field);
  }
  model_ = std::make_unique<BpeModel>(root.at("model"), pre_tokenizer_.byte_level);
  special_.unk = model_->unk();
  if (const auto field = root.find("decoder")) {
    decoder_ = read_decoder(*field);
    has_decoder_ = true;
  }
  read_tokens(root);
  if (const auto field = root.find("post_processor")) {
    read_template(*field);
  }
  if (!config.is_null()) {
    special_ = read_special(JsonField(config, name + ", tokenizer_config.json"), *this, special_);
  }
}

void BpeTokenizer::put_token(const std::string& token, std::int32_t id, const JsonField& place) {
  const std::size_t at = static_cast<std::size_t>(id);
  if (at >= tokens_.size()) {
    if (at > ids_.size() + most_holes) {
      place.refuse("the id {} of '{}' is far beyond the {} tokens that there are", id, token, ids_.size());
    }
    tokens_.resize(at + 1);
  }
  if (tokens_[at]) {
    place.refuse("'{}' and '{}' have one id, {}", *tokens_[at], token, id);
  }
  tokens_[at] = token;
  ids_.emplace(token, id);
}

void BpeTokenizer::read_tokens(const JsonField& root) {
  std::vector<std::pair<std::string, std::int32_t>> in_order = model_->vocabulary();
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [token, id] : in_order) {
    put_token(token, id, root.at("model").at("vocab"));
  }
  std::int32_t next = static_cast<std::int32_t>(in_order.size());  // the library numbers new tokens itself
  std::vector<std::pair<std::string, AddedToken>> plain, normalized;
  NormalizerWork work;
  const auto list = root.find("added_tokens");
  std::set<std::string> seen;
  for (std::size_t i = 0; list && i < list->size(); ++i) {
    const JsonField field = list->element(i);
    AddedToken token = read_added_token(field);
    if (token.content.empty()) {
      field.refuse("an empty token");
    }
    if (!seen.insert(token.content).second) {
      field.refuse("'{}' stands there a second time", token.content);
    }
    const std::optional<std::int32_t> known = id_of(token.content);
    if (token.id != known.value_or(next)) {
      field.refuse("'{}' has the id {}, expected {}: that of the vocabulary, or the next free one", token.content,
                   token.id, known.value_or(next));
    }
    next = std::max(next, token.id + 1);
    if (!known) {
      put_token(token.content, token.id, field);
    }
    std::string text = token.content;
    if (token.normalized) {
      normalize(normalizer_, text, work);
    }
    (token.normalized ? normalized : plain).emplace_back(std::move(text), std::move(token));
  }
  // Of two tokens with one normalized text the library finds the special one.
  std::stable_partition(normalized.begin(), normalized.end(), [](const auto& token) { return token.second.special; });
  plain_ = AddedTokens(std::move(plain));
  normalized_ = AddedTokens(std::move(normalized));
}

// What stands before and behind a text says which tokens are bos and eos. Ids of pairs of texts and offsets are not
// asked for here.
void BpeTokenizer::read_template(const JsonField& field) {
  const std::string type = field.at("type").text();
  if (type == "Sequence") {
    field.only({"type", "processors"});
    const JsonField list = field.at("processors");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read_template(list.element(i));
    }
    return;
  }
  if (type == "ByteLevel") {
    field.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return;
  }
  if (type != "TemplateProcessing") {
    field.at("type").refuse("the post-processor \"{}\" is not implemented", type);
  }
  field.only({"type", "single", "pair", "special_tokens"});
  const JsonField single = field.at("single");
  bool behind = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonField part = single.element(i);
    part.only({"SpecialToken", "Sequence"});
    if (part.find("Sequence")) {
      behind = true;
      continue;
    }
    const JsonField token = part.at("SpecialToken").at("id");
    const std::optional<std::int32_t> id = id_of(token.text());
    if (!id) {
      token.refuse("'{}' is no token", token.text());
    }
    std::optional<std::int32_t>& place = behind ? special_.eos : special_.bos;
    place = place ? place : id;
    special_.bos_first = special_.bos_first || !behind;
  }
}

}  // namespace orthant
