// Where this build's programs are, and how one of them takes another's place.
//
// bin/orthant is the one that users start; libexec/orthant holds a program for each command that is not built into it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace orthant {

// This program. Errors: Error.
std::filesystem::path own_program();

// bin/orthant of this build, from there or from libexec/orthant. Errors: Error.
std::filesystem::path main_program();

// Of this build; it need not be there. Errors: Error.
std::filesystem::path libexec_folder();

// This program with these words, as the command of another process. Errors: Error.
std::vector<std::string> own_command(std::vector<std::string> words);

// command[0], a path, takes this process's place. Errors: Error where it cannot be started.
[[noreturn]] void become(const std::vector<std::string>& command);

}  // namespace orthant
