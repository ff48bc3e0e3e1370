// A new SentencePiece tokenizer from sentences.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace orthant {

struct TrainTokenizerOptions {
  std::int64_t vocabulary = 32000;  // tokens, the 256 bytes and bos, eos, unk among them
  std::string type = "bpe";         // or "unigram"
  std::int64_t most_sentences = 0;  // 0: all; else a sample of them, drawn by a fixed seed
  int threads = 1;
};

// Bytes of a .model. Texts stay what they are (no normalization), and bytes that no token has are tokens of their own,
// so decode(encode(x)) is x for UTF-8 without U+2581, the library's own sign for a space. `next` gives a sentence each
// time, and false at the end. Equal sentences and options give equal bytes; the number of threads is written into them.
// Errors: ConfigError for no text, too few different ones, or a vocabulary that is too large or too small.
std::string train_tokenizer(const TrainTokenizerOptions& options, const std::function<bool(std::string&)>& next);

}  // namespace orthant
