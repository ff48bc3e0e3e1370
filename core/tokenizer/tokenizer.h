// Tokenizer: text as ids of a vocabulary, and back.
//
// "bytes" is built in. The module "tokenizer" reads published ones (tokenizer_module.h): a tokenizer.json with a BPE
// model (Hugging Face tokenizers), or a SentencePiece .model.
//
// Bytes that are no UTF-8: each run of them is encoded by itself, and no token spans its ends. Byte-level models and
// those with byte fallback keep every byte, so decode(encode(x)) is x where it is for text. A .model reads U+FFFD for
// each, as SentencePiece does. Another model refuses such text.
//
// Thread safety: a Tokenizer is constant and shared. An Encoder belongs to one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

// A file that the tokenizer was made of, whole: it travels with runs and exports.
struct TokenizerFile {
  std::string name;  // without folder
  std::string bytes;
};

// Ids, where the files say which.
struct SpecialTokens {
  std::optional<std::int32_t> bos, eos, unk, pad;
  bool bos_first = false;  // a text that a model of these files reads begins with bos
};

class Encoder {
 public:
  virtual ~Encoder() = default;
  // Appends the ids of `text`, without bos and eos. Errors: Error for what the vocabulary cannot say.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // One thread's encoder: buffers, and a bounded cache of words. Must not outlive the tokenizer.
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  // Bytes: those of ids that are part of a character are no UTF-8. Errors: Error for an id of no token.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  // Ids are below it.
  virtual std::int64_t vocabulary() const = 0;
  // Tokens whose texts encode() reads as any other text: the control tokens of a .model.
  virtual std::vector<std::string> unread_tokens() const { return {}; }

  // By an encoder of its own: for a text or two.
  std::vector<std::int32_t> encode(std::string_view text) const;

  const std::string& name() const { return name_; }  // "bytes", or the path that was given
  const SpecialTokens& special() const { return special_; }
  // The file that ids follow from comes first, then those that lie beside it under the names of
  // published_tokenizer_files(). Empty for "bytes".
  const std::vector<TokenizerFile>& files() const { return files_; }
  // XXH3 of that file; 0 for "bytes".
  std::uint64_t hash() const { return hash_; }

 protected:
  Tokenizer(std::string name, std::vector<TokenizerFile> files);
  SpecialTokens special_;

 private:
  std::string name_;
  std::vector<TokenizerFile> files_;
  std::uint64_t hash_ = 0;
};

// `name`: "bytes", a tokenizer.json, a .model, or a folder that holds one of them (tokenizer.json is taken before
// tokenizer.model, unless `orthant export` made it of that). A tokenizer_config.json beside it says which tokens are
// bos, eos, unk and pad. Errors: ConfigError for a file that is missing or damaged, or that asks for what is not done
// here, and those of tokenizer_module().
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name);

// Names of the files that belong to a published tokenizer, those that are read here among them.
std::vector<std::string> published_tokenizer_files();

// Tokenizer::hash() of the tokenizer in a folder, which is not loaded. Nothing where there is none.
std::optional<std::uint64_t> tokenizer_hash_in(const std::filesystem::path& folder);

// Says which tokens are bos, eos, unk and pad.
inline constexpr const char* tokenizer_config_file = "tokenizer_config.json";

// `orthant export` makes a tokenizer.json of a .model. The key of its tokenizer_config.json that says so, and what
// stands there: a hash of the tokenizer.json, so that one which was changed since is taken for itself.
inline constexpr const char* made_of_model_key = "made_of_tokenizer_model";
std::string made_of_model_hash(std::string_view tokenizer_json);

}  // namespace orthant
