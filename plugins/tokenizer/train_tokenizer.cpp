#include "plugins/tokenizer/train_tokenizer.h"

#include <orthant/error.h>
#include <sentencepiece_trainer.h>

#include <cstdlib>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace orthant {
namespace {

constexpr std::size_t longest_sentence = 16384;  // bytes; longer ones would be left out by the library

// Sentences for the library, long ones in pieces.
class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::function<bool(std::string&)>& next) : next_(next) { Next(); }

  bool done() const override { return done_; }
  void Next() override {
    while (at_ >= sentence_.size()) {
      at_ = 0;
      sentence_.clear();
      if (!next_(sentence_)) {
        done_ = true;
        return;
      }
    }
    std::size_t end = std::min(sentence_.size(), at_ + longest_sentence);
    if (end < sentence_.size()) {  // at the last space, or else at the beginning of a character
      const std::size_t space = sentence_.rfind(' ', end);
      end = space != std::string::npos && space > at_ ? space : end;
      while (end > at_ + 1 && (static_cast<unsigned char>(sentence_[end]) & 0xc0) == 0x80) {
        --end;
      }
    }
    piece_ = sentence_.substr(at_, end - at_);
    at_ = end;
  }
  const std::string& value() const override { return piece_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::function<bool(std::string&)>& next_;
  std::string sentence_, piece_;
  std::size_t at_ = 0;
  bool done_ = false;
};

// The number that follows `words` in what the library says; nullopt: it says something else.
std::optional<long> number_after(const std::string& said, std::string_view words) {
  const std::size_t at = said.find(words);
  if (at == std::string::npos || said.find_first_of("0123456789", at) != at + words.size()) {
    return std::nullopt;
  }
  return std::strtol(said.c_str() + at + words.size(), nullptr, 10);
}

// The library's words are its source's, with file and line.
std::string why_not(const std::string& said) {
  if (const auto most = number_after(said, "Please set it to a value <= ")) {
    return fmt::format("they can fill {} at most. Give a --vocab-size up to that, or more texts", *most);
  }
  if (const auto least = number_after(said, " vs ")) {
    return fmt::format("its special tokens, bytes and characters are {} already. Give a --vocab-size above that",
                       *least);
  }
  return "it needs one id for each of its special tokens, bytes and characters, and can fill only so many. Give "
         "another --vocab-size";
}

}  // namespace

std::string train_tokenizer(const TrainTokenizerOptions& options, const std::function<bool(std::string&)>& next) {
  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", options.type},
      {"vocab_size", std::to_string(options.vocabulary)},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"character_coverage", "0.9999"},
      {"max_sentence_length", std::to_string(longest_sentence + 1)},
      {"input_sentence_size", std::to_string(options.most_sentences)},
      {"shuffle_input_sentence", options.most_sentences > 0 ? "true" : "false"},
      {"num_threads", std::to_string(options.threads)},
      {"minloglevel", "2"},
  };
  sentencepiece::SetRandomGeneratorSeed(1);
  Sentences sentences(next);
  if (sentences.done()) {
    throw ConfigError("there is no sentence in these texts to train a tokenizer on: they are empty");
  }
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &sentences, &model);
  if (!status.ok()) {
    throw ConfigError(fmt::format("a vocabulary of {} cannot be made from these texts: {}", options.vocabulary,
                                  why_not(status.ToString())));
  }
  return model;
}

}  // namespace orthant
