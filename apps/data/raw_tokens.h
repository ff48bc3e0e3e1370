// Token ids in files of others, as a token file of ours: what `orthant data prepare` does with them.
//
//   llm.c    256 int32 (magic 20240520: ids of 16 bits, 20240801: of 32; version; tokens), then the ids
//   NumPy    a .npy of one dimension, of unsigned or signed integers
//   nanoGPT  ids and nothing else: nothing in it says of what size they are, so somebody must
//
// All are little-endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/data/token_file.h"

namespace orthant {

struct RawTokens {
  std::size_t width = 0;  // bytes an id
  bool is_signed = false;
  std::size_t byte_offset = 0;  // of the first id
  std::int64_t tokens = 0;
};

// width: of ids without a header, 2 or 4; 0: nobody says. Nothing: the file has no header that is known, and nobody
// says the width. Errors: ConfigError for a header that does not fit the file, an array of another form, and ids that
// do not fill the file.
std::optional<RawTokens> raw_tokens_in(const MappedFile& file, std::size_t width);

struct RawTokensOptions {
  std::vector<std::string> files;
  std::size_t width = 0;
  std::int64_t vocabulary = 0;
  std::uint64_t tokenizer = 0;  // Tokenizer::hash(); 0: not known
  std::filesystem::path output;
};

// Each file becomes one document. Errors: as above; ConfigError for an id that is not below the vocabulary, by its
// place; and as write_token_file.
TokenFile prepare_raw_tokens(const RawTokensOptions& options);

}  // namespace orthant
