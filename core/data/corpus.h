// Corpus: one long row of tokens over one or more memory-mapped files, and where its documents lie.
//
// Text files give a token per byte; token files (token_file.h) hold 16 or 32 bits a token. Nothing is copied whole.
// Thread safety: const access from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mapped_file.h"

namespace orthant {

// Tokens [begin, end) of a corpus or of a file.
struct Document {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class Corpus {
 public:
  // The files' bytes, one after another. Errors: ConfigError for a missing or an empty file, and one that is no text.
  static Corpus text(const std::vector<std::string>& paths);
  // The files' tokens, one after another; all must be of one tokenizer. Megatron's (megatron_file.h) do not say their
  // vocabulary: it is `vocabulary` then, which their ids must be below. Errors as for TokenFile and MegatronIndex.
  static Corpus tokens(const std::vector<std::string>& paths, std::int64_t vocabulary = 0);

  std::int64_t size() const { return size_; }  // tokens
  std::int64_t vocabulary() const { return vocabulary_; }
  // Tokenizer::hash() of what made the tokens, 0 for bytes. Nothing: the files do not say.
  std::optional<std::uint64_t> tokenizer() const { return tokenizer_; }
  // Copies tokens [begin, begin + out.size()). Errors: Error when they are outside the corpus, or when an id is not
  // below the vocabulary (a damaged token file), naming file and place.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;
  // In order, without overlap, none empty. Text: what lies between separators (which belong to no document), a
  // file's end ends one too. Token files: as written. `separator` is for text only; an empty one: a file a document.
  std::vector<Document> documents(const std::string& separator) const;
  // "a.txt and 2 more files": for messages.
  std::string name() const;

 private:
  struct Part {
    MappedFile file;
    std::int64_t first = 0;       // the corpus index of its first token
    std::int64_t size = 0;        // tokens
    std::size_t byte_offset = 0;  // of its first token in the file
    std::size_t width = 1;        // bytes a token
    bool is_signed = false;
    std::vector<Document> documents;
  };
  Corpus() = default;
  void append(Part part);
  void append_megatron(const std::string& path, std::int64_t vocabulary);
  std::uint64_t id_at(const Part& part, std::int64_t at) const;

  std::vector<Part> parts_;
  std::int64_t size_ = 0;
  std::int64_t vocabulary_ = 256;
  std::optional<std::uint64_t> tokenizer_ = 0;
  bool is_text_ = true;
};

// The documents of `bytes`: what lies between occurrences of `separator`, empty ones left out.
std::vector<Document> split_documents(std::span<const std::byte> bytes, const std::string& separator);

}  // namespace orthant
