#include "core/modules/find_library.h"

#include <orthant/error.h>

#include "core/base/list_folder.h"
#include "core/modules/open_library.h"

namespace orthant {

namespace fs = std::filesystem;

std::string library_file(const std::string& kind, const std::string& name) {
  return "liborthant_" + kind + "_" + name + ".so";
}

std::map<std::string, fs::path> libraries_in(const fs::path& directory, const std::string& kind,
                                             std::error_code* failed) {
  const std::string prefix = "liborthant_" + kind + "_", suffix = ".so", about = ".about";
  std::map<std::string, fs::path> found;
  std::error_code ignored;
  for (const fs::path& path : list_folder(directory, failed == nullptr ? ignored : *failed)) {
    std::string file = path.filename().string();
    file.resize(file.size() - (file.ends_with(suffix + about) ? about.size() : 0));
    if (file.starts_with(prefix) && file.ends_with(suffix)) {
      found[file.substr(prefix.size(), file.size() - prefix.size() - suffix.size())] = directory / file;
    }
  }
  return found;
}

std::optional<OpenLibrary> open_first(const std::string& kind, const std::string& name, std::uint32_t abi,
                                      const std::vector<fs::path>& directories, std::string& tried) {
  for (const fs::path& directory : directories) {
    const fs::path file = directory / library_file(kind, name);
    std::error_code error;
    if (fs::symlink_status(file, error).type() == fs::file_type::not_found) {
      tried += fmt::format("\n    {}: no such file", file.string());
      continue;
    }
    try {
      return OpenLibrary{file, open_library(file, kind, abi)};
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& refused) {
      throw ConfigError(
          fmt::format("cannot load {} \"{}\": {}: {}\nNo later folder is searched, which could hold another one: build "
                      "this file again, or remove it",
                      kind, name, file.string(), refused.what()));
    }
  }
  return std::nullopt;
}

}  // namespace orthant
