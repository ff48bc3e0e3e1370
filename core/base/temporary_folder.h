// Where the system keeps temporary files.
#pragma once

#include <filesystem>

namespace orthant {

// That of TMPDIR, else /tmp. Errors: ConfigError where it is no folder.
std::filesystem::path temporary_folder();

}  // namespace orthant
