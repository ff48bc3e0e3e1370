// Token files: ids of a tokenizer, 16 or 32 bits each, with the places of the documents.
//
// Layout, little-endian: 64 bytes of header (magic "ORTHTOKN", u32 version 1 or 2, u32 bytes a token (2 or 4), u64
// vocabulary, u64 tokens, u64 documents, u64 XXH3 of the tokens' bytes, u64 XXH3 of the tokenizer's file (version 1:
// zero, the tokenizer is not known, or is "bytes"), u64 XXH3 of the header up to here and of the documents), then per
// document u64 begin and u64 end (in tokens, ascending, disjoint), then the tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/data/corpus.h"

namespace orthant {

// What the header says, once it has been found to agree with the file.
struct TokenFile {
  std::size_t width = 2;
  std::int64_t vocabulary = 0;
  std::int64_t tokens = 0;
  std::size_t byte_offset = 0;  // of the first token
  std::uint64_t tokenizer = 0;  // Tokenizer::hash(); 0: not known, or bytes
  std::vector<Document> documents = {};
};

// Files up to this size have their tokens' checksum verified whenever they are opened; larger ones by
// `orthant data check` only, so that opening a corpus does not read all of it.
inline constexpr std::size_t checked_on_open_bytes = std::size_t{256} << 20;

// Validates header, sizes against the real file size, documents and (see above, or when `check_tokens`) tokens.
// Errors: ConfigError naming file, what was expected and what was found. Allocates no more than the file's size.
TokenFile read_token_file(const MappedFile& file, bool check_tokens = false);

// Bytes of a token whose id is below `vocabulary`.
std::size_t token_width(std::int64_t vocabulary);

// Refuses a name that no file can have, and that of a file which is no token file: a text, most of all. Errors:
// ConfigError.
void check_token_output(const std::filesystem::path& output);

// Writes a token file with the vocabulary, tokenizer and documents of `content`. `feed` gives all tokens, of
// token_width bytes each, to the function that it is called with, in any number of calls. The output appears under its
// name only when it is complete; nothing is left of it otherwise. Errors: those of
// check_token_output, Error when it cannot be written, and what `feed` throws. Returns what was written.
using TokenBytes = std::function<void(std::span<const std::byte>)>;
TokenFile write_token_file(const std::filesystem::path& output, TokenFile content,
                           const std::function<void(const TokenBytes&)>& feed);

// Writes the bytes of text files as a token file (vocabulary 256): what `orthant data prepare` does. The output
// appears under its name only when it is complete. Returns what was written.
TokenFile prepare_byte_tokens(const std::vector<std::string>& texts, const std::string& separator,
                              const std::filesystem::path& output);

}  // namespace orthant
