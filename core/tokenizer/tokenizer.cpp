#include "core/tokenizer/tokenizer.h"

#include <orthant/error.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/json.h"
#include "core/tokenizer/bpe_tokenizer.h"
#include "core/tokenizer/sentencepiece_tokenizer.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t largest_file = std::uintmax_t{1} << 30;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer("bytes", {}) {}

  std::unique_ptr<Encoder> encoder() const override {
    class Bytes final : public Encoder {
     public:
      void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
        for (const char c : text) {
          ids.push_back(static_cast<unsigned char>(c));
        }
      }
    };
    return std::make_unique<Bytes>();
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < 256, "the tokenizer \"bytes\" has no token {}", id);
      text += static_cast<char>(id);
    }
    return text;
  }
  std::optional<std::int32_t> id_of(std::string_view token) const override {
    return token.size() == 1 ? std::optional<std::int32_t>(static_cast<unsigned char>(token[0])) : std::nullopt;
  }
  std::int64_t vocabulary() const override { return 256; }
};

std::string read_whole(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::is_regular_file(path, error) ? fs::file_size(path, error) : 0;
  if (error || size == 0 || size > largest_file) {
    throw ConfigError(fmt::format(
        "the tokenizer '{}' {}; expected \"bytes\", a tokenizer.json, a SentencePiece .model or a folder with one",
        path.string(),
        error       ? error.message()
        : size == 0 ? "is no file, or empty"
                    : "is larger than 1 GiB"));
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    throw ConfigError(fmt::format("the tokenizer '{}' cannot be read", path.string()));
  }
  return bytes;
}

Json parse(const std::string& text, const std::string& name) {
  try {
    return parse_json(std::as_bytes(std::span(text)), fmt::format("tokenizer '{}'", name));
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

std::shared_ptr<const Tokenizer> load_json(const std::string& name, const fs::path& path) {
  const fs::path config = path.parent_path() / "tokenizer_config.json";
  std::error_code error;
  const bool beside = fs::status(config, error).type() != fs::file_type::not_found;
  return parse_tokenizer_json(name, read_whole(path), beside ? read_whole(config) : "");
}

std::uint64_t hash_of(const std::string& bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

Tokenizer::Tokenizer(std::string name, std::vector<TokenizerFile> files)
    : name_(std::move(name)), files_(std::move(files)) {
  if (!files_.empty()) {
    hash_ = hash_of(files_.front().bytes);
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encoder()->encode(text, ids);
  return ids;
}

std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string name, std::string text, std::string config) {
  const Json json = parse(text, name);
  const Json beside = config.empty() ? Json() : parse(config, name + ", tokenizer_config.json");
  std::vector<TokenizerFile> files = {{"tokenizer.json", std::move(text)}};
  if (!config.empty()) {
    files.push_back({"tokenizer_config.json", std::move(config)});
  }
  return std::make_shared<BpeTokenizer>(name, std::move(files), json, beside);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") {
    return std::make_shared<ByteTokenizer>();
  }
  fs::path path = name;
  std::error_code error;  // of a name that no file can have: told below
  if (fs::is_directory(path, error)) {
    path /= fs::exists(path / "tokenizer.json", error) ? "tokenizer.json" : "tokenizer.model";
  }
  if (path.extension() == ".json") {
    return load_json(name, path);
  }
  if (path.extension() == ".model") {
    return make_sentencepiece_tokenizer(name, {"tokenizer.model", read_whole(path)});
  }
  throw ConfigError(
      fmt::format("the tokenizer '{}' is not known; expected \"bytes\", a tokenizer.json, a SentencePiece .model or "
                  "a folder with "
                  "one",
                  name));
}

std::optional<std::uint64_t> tokenizer_hash_in(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name)) {
      return hash_of(read_whole(folder / name));
    }
  }
  return std::nullopt;
}

}  // namespace orthant
