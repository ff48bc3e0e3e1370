#include "core/tokenizer/tokenizer.h"

#include <orthant/error.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer_module.h"

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
        error == std::errc::no_such_file_or_directory ? "is not there"
        : error                                       ? "cannot be read: " + error.message()
        : size == 0                                   ? "is no file, or empty"
                                                      : "is larger than 1 GiB"));
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    throw ConfigError(fmt::format("the tokenizer '{}' cannot be read", path.string()));
  }
  return bytes;
}

// Of the tokenizer_config.json in the tokenizer's folder; empty where there is none.
std::string read_config_beside(const fs::path& path) {
  const fs::path config = path.parent_path() / tokenizer_config_file;
  std::error_code error;
  return fs::status(config, error).type() != fs::file_type::not_found ? read_whole(config) : "";
}

// What else was published with the file, where it has the name that it was published under. A tokenizer.json that
// `orthant export` made of a .model is made anew.
void add_files_beside(const fs::path& path, std::vector<TokenizerFile>& files) {
  const std::vector<std::string> names = published_tokenizer_files();
  const std::string own = path.filename().string();
  if (std::find(names.begin(), names.end(), own) == names.end()) {
    return;
  }
  std::error_code error;
  for (const std::string& name : names) {
    const bool made = name == "tokenizer.json" && own == "tokenizer.model";
    if (name != own && name != tokenizer_config_file && !made &&
        fs::is_regular_file(path.parent_path() / name, error) && fs::file_size(path.parent_path() / name, error) > 0) {
      files.push_back({name, read_whole(path.parent_path() / name)});
    }
  }
}

// Whether such a file was made of the .model beside it, as `config`, the tokenizer_config.json, says, and not changed
// since. Then the .model is what data and runs were made with.
bool was_made_of_model(std::string_view tokenizer_json, std::string_view config) {
  const Json json = Json::parse(config, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains(made_of_model_key) &&
         json.at(made_of_model_key) == made_of_model_hash(tokenizer_json);
}

// The file that ids follow from; empty where there is none. A tokenizer.json is taken before a tokenizer.model, but not
// one that `orthant export` made of that.
fs::path tokenizer_file_in(const fs::path& folder) {
  std::error_code error;
  const fs::path json = folder / "tokenizer.json", model = folder / "tokenizer.model";
  if (!fs::exists(model, error)) {
    return fs::exists(json, error) ? json : fs::path();
  }
  const bool made =
      !fs::exists(json, error) || (fs::exists(folder / tokenizer_config_file, error) &&
                                   was_made_of_model(read_whole(json), read_whole(folder / tokenizer_config_file)));
  return made ? model : json;
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

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") {
    return std::make_shared<ByteTokenizer>();
  }
  fs::path path = name;
  std::error_code error;  // of a name that no file can have: told below
  if (fs::is_directory(path, error)) {
    path = tokenizer_file_in(path);
    if (path.empty()) {
      throw ConfigError(fmt::format("the folder '{}' has neither a tokenizer.json nor a tokenizer.model", name));
    }
  }
  const bool json = path.extension() == ".json";
  if (json || path.extension() == ".model") {
    std::vector<TokenizerFile> files = {{json ? "tokenizer.json" : "tokenizer.model", read_whole(path)}};
    if (std::string config = read_config_beside(path); !config.empty()) {
      files.push_back({tokenizer_config_file, std::move(config)});
    }
    add_files_beside(path, files);
    return tokenizer_module().make(name, std::move(files));
  }
  throw ConfigError(
      fmt::format("the tokenizer '{}' is not {}; expected \"bytes\", a tokenizer.json, a SentencePiece .model or a "
                  "folder with one",
                  name, fs::exists(path, error) ? "known by its name" : "there"));
}

std::string made_of_model_hash(std::string_view tokenizer_json) {
  return fmt::format("{:016x}", XXH3_64bits(tokenizer_json.data(), tokenizer_json.size()));
}

std::vector<std::string> published_tokenizer_files() {
  return {"tokenizer.json",    tokenizer_config_file, "tokenizer.model", "special_tokens_map.json",
          "added_tokens.json", "vocab.json",          "merges.txt",      "chat_template.jinja",
          "tiktoken.model"};
}

std::optional<std::uint64_t> tokenizer_hash_in(const fs::path& folder) {
  const fs::path file = tokenizer_file_in(folder);
  return file.empty() ? std::nullopt : std::optional(hash_of(read_whole(file)));
}

}  // namespace orthant
