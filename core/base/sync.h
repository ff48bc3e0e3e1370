// What a power failure may not take.
#pragma once

#include <filesystem>

namespace orthant {

// Until this returns, a power failure may lose what streams have written to the file. Nothing where it is of a kind
// that cannot be synced (a pipe). Errors: Error with path and the system's words.
void sync_file(const std::filesystem::path& path);
// The same of names made in the folder. One that may not be opened, or is on a file system that cannot sync folders, is
// passed over: there is nothing better to do.
void sync_folder(const std::filesystem::path& path);

}  // namespace orthant
