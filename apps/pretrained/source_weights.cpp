#include "apps/pretrained/source_weights.h"

#include <orthant/error.h>
#include <sys/mman.h>

#include <set>

#include "core/base/json.h"
#include "core/base/keyed_hash.h"
#include "core/base/list_folder.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void no_weights(const fs::path& folder, const std::string& single, const std::string& index_name) {
  std::error_code ignored;
  for (const fs::path& path : list_folder(folder, ignored)) {
    const std::string name = path.filename().string();
    if (name.ends_with(".gguf")) {
      throw ConfigError(
          fmt::format("'{}' has '{}' and no {}: models in GGUF are not read. Give the folder from which it "
                      "was made",
                      folder.string(), name, single));
    }
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) {
      throw ConfigError(
          fmt::format("'{}' has '{}' and no {}: files that run code when they are loaded are not read. Save the model "
                      "with safe_serialization=True",
                      folder.string(), name, single));
    }
  }
  throw ConfigError(fmt::format("'{}' has neither {} nor {}: give the folder of a model as it was published",
                                folder.string(), single, index_name));
}

// File name of each tensor.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const MappedFile file(path);
  const std::string where = fmt::format("'{}'", path.string());
  const Json json = parse_json(file.bytes(), where);
  const Json& map = member(json, "weight_map", where);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, name] : map.items()) {
    if (!name.is_string() || name.get<std::string>().find('/') != std::string::npos) {
      throw ConfigError(fmt::format("{}: '{}' is placed in {}: the name of a file beside it was expected", where,
                                    tensor, name.dump()));
    }
    files[tensor] = name.get<std::string>();
  }
  return files;
}

}  // namespace

SourceWeights::SourceWeights(const fs::path& folder, const std::string& stem) {
  const std::string single = stem + ".safetensors", index_name = single + ".index.json";
  const fs::path index = folder / index_name;
  if (!fs::exists(index)) {
    if (!fs::exists(folder / single)) {
      no_weights(folder, single, index_name);
    }
    open(folder / single);
    return;
  }
  if (fs::exists(folder / single)) {
    throw ConfigError(fmt::format("'{}' has both {} and {}: which of them is the model? Remove the other",
                                  folder.string(), single, index_name));
  }
  const std::map<std::string, std::string> placed = read_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : placed) {
    names.insert(file);
  }
  for (const std::string& name : names) {
    if (!fs::exists(folder / name)) {
      throw ConfigError(fmt::format("'{}' is missing: {} names it", (folder / name).string(), index_name));
    }
    open(folder / name);
  }
  for (const auto& [tensor, file] : placed) {
    const auto found = places_.find(tensor);
    if (found == places_.end() || files_[found->second.file].file().path().filename() != file) {
      throw ConfigError(fmt::format("{} places '{}' in '{}', which does not have it", index_name, tensor, file));
    }
  }
  for (const auto& [tensor, place] : places_) {
    if (!placed.contains(tensor)) {
      throw ConfigError(fmt::format("'{}' has '{}', of which {} knows nothing",
                                    files_[place.file].file().path().string(), tensor, index_name));
    }
  }
}

bool is_lfs_pointer(std::string_view bytes) {
  return bytes.starts_with("version https://git-lfs.github.com/spec/");
}

void SourceWeights::open(const fs::path& path) {
  {
    const MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    if (is_lfs_pointer({reinterpret_cast<const char*>(bytes.data()), bytes.size()})) {
      throw ConfigError(fmt::format("'{}' {}", path.string(), lfs_pointer_advice));
    }
  }
  try {
    files_.emplace_back(path);
  } catch (const Error& damaged) {
    throw ConfigError(damaged.what());
  }
  for (const FileTensor& tensor : files_.back().tensors()) {
    const auto [there, added] = places_.emplace(tensor.name, Place{files_.size() - 1, &tensor});
    if (!added) {
      throw ConfigError(fmt::format("'{}' is in '{}' and in '{}'", tensor.name,
                                    files_[there->second.file].file().path().string(), path.string()));
    }
  }
}

const FileTensor* SourceWeights::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

std::vector<std::string> SourceWeights::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_) {
    all.push_back(name);
  }
  return all;
}

std::span<const std::byte> SourceWeights::bytes(const std::string& name) const {
  const Place& place = places_.at(name);
  return files_[place.file].bytes(*place.tensor);
}

std::vector<SourceWeights::File> SourceWeights::files() const {
  std::vector<File> all;
  for (const SafetensorsReader& reader : files_) {
    const std::span<const std::byte> bytes = reader.file().bytes();
    all.push_back({reader.file().path().filename().string(), bytes.size(),
                   sha256_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()})});
  }
  return all;
}

void SourceWeights::release_memory() const {
  for (const SafetensorsReader& reader : files_) {
    if (reader.file().size() > 0) {
      madvise(const_cast<std::byte*>(reader.file().bytes().data()), reader.file().size(), MADV_DONTNEED);
    }
  }
}

std::uint64_t SourceWeights::size() const {
  std::uint64_t sum = 0;
  for (const SafetensorsReader& reader : files_) {
    sum += reader.file().size();
  }
  return sum;
}

}  // namespace orthant
