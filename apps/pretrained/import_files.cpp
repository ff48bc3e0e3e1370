#include "apps/pretrained/import_files.h"

#include <orthant/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "apps/pretrained/receipt.h"
#include "core/base/text_file.h"
#include "core/run/run_text_rules.h"

namespace orthant {

namespace fs = std::filesystem;

std::vector<TravellingFile> read_travelling_files(const fs::path& source) {
  std::vector<TravellingFile> files;
  for (const std::string& name : travelling_files()) {
    if (std::optional<std::string> text = read_text_file(source / name)) {
      if (name.ends_with(".json") && !nlohmann::json::accept(*text)) {
        throw ConfigError(fmt::format(
            "'{}' ({} bytes) {}", (source / name).string(), text->size(),
            is_lfs_pointer(*text) ? lfs_pointer_advice : "is no JSON that can be read to its end: copy it again"));
      }
      files.push_back({name, std::move(*text)});
    }
  }
  return files;
}

std::vector<std::string> files_left_behind(const fs::path& source, const SourceWeights& weights) {
  std::set<std::string> known;
  for (const std::string& name : travelling_files()) {
    known.insert(name);
  }
  for (const SourceWeights::File& file : weights.files()) {
    known.insert(file.name);
  }
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (!known.contains(name) && !name.starts_with(".") && name != "model.safetensors.index.json") {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> notes_on_ends(const fs::path& source, std::int64_t vocabulary) {
  const std::string name = file_with_ends(source);
  try {
    require_ends_within(published_text_rules(source), vocabulary, fmt::format("'{}'", (source / name).string()));
  } catch (const ConfigError& error) {
    if (name != "config.json") {
      throw;
    }
    return {error.what()};
  }
  return {};
}

std::vector<std::string> notes_on_tokenizer(const fs::path& source) {
  const bool read = fs::exists(source / "tokenizer.json") || fs::exists(source / "tokenizer.model");
  if (read || !fs::exists(source / "tiktoken.model")) {
    return {};
  }
  return {
      "tiktoken.model travels with the model and is not read here: texts need a tokenizer.json of the same ids "
      "(data.tokenizer, --tokenizer)"};
}

}  // namespace orthant
