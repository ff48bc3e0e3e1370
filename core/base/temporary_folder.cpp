#include "core/base/temporary_folder.h"

#include <orthant/error.h>

#include <cstdlib>
#include <system_error>

namespace orthant {

std::filesystem::path temporary_folder() {
  const char* const told = std::getenv("TMPDIR");
  const std::filesystem::path folder = told == nullptr || *told == '\0' ? "/tmp" : told;
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw ConfigError(fmt::format("there is no folder '{}' for temporary files: set TMPDIR to one", folder.string()));
  }
  return folder;
}

}  // namespace orthant
