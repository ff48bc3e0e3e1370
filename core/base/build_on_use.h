// Programs and modules that `./launch` does not build: in a build folder the first use of one builds it, and the first
// after the library was built again. FILE.about beside a file says in a line "build = FOLDER" where that can be done;
// an installed one has no such line. ORTHANT_NO_BUILD in the environment refuses it.
#pragma once

#include <filesystem>
#include <string>

namespace orthant {

// The folder of the line; empty: there is none.
std::filesystem::path build_folder_of(const std::filesystem::path& file);

// Builds the target that makes `file`, where it has a build folder and is missing or older than the library. What the
// build prints goes to the standard error. Processes take turns, and those that wait find it built. Errors: Error.
void build_on_use(const std::filesystem::path& file, const std::string& target);

}  // namespace orthant
