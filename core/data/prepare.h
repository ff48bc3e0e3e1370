// Texts to one token file, by a tokenizer, in several threads: what `orthant data prepare` does.
//
// The texts are cut into shards of whole documents. A finished shard is a file in OUT.parts/, so that the same call
// goes on after it was killed, at any moment. OUT appears only when it is complete, and is the same for every number of
// threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/text_file.h"
#include "core/data/token_file.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

struct PrepareProgress {
  std::uint64_t bytes = 0, bytes_in_all = 0;  // of text files
  std::int64_t tokens = 0;
};

// Documents as other numbers than a tokenizer's ids.
struct DocumentCoding {
  std::string name;             // of what the numbers depend on
  std::int64_t vocabulary = 0;  // they are below it
  std::function<std::unique_ptr<Encoder>()> encoder;
};

struct PrepareOptions {
  std::vector<std::string> files;
  TextOptions text;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<DocumentCoding> coding = {};       // in place of the tokenizer's own
  std::optional<std::int32_t> bos = {}, eos = {};  // written before, behind each document
  int threads = 1;
  std::filesystem::path output;
  std::uint64_t shard_bytes = std::uint64_t{8} << 20;         // of text, at least, but for the last of a file
  std::function<void(const PrepareProgress&)> progress = {};  // called by one thread at a time

  std::int64_t vocabulary() const { return coding ? coding->vocabulary : tokenizer->vocabulary(); }
};

// What the tokens of a text depend on beside the text, as one line.
std::string tokens_depend_on(const PrepareOptions& options);

// Shards of an earlier call with the same texts (size and time of change), tokenizer and options are kept; those of
// another are removed. Errors: ConfigError for texts that are missing, empty or no JSON lines, for texts without a
// token, and for an output that check_token_output refuses; Error where another call writes the same output, for
// OUT.parts that is somebody else's, for what the tokenizer refuses (by file and line), and for a full disk. Returns
// what was written.
TokenFile prepare_tokens(const PrepareOptions& options);

}  // namespace orthant
