// Commands that are programs of their own: `orthant NAME` runs orthant-NAME, as git does.
//
// First libexec/orthant of this build, then the folders of PATH. Beside a program of libexec, orthant-NAME.about says
// in lines of "key = value" the heading of --help (group), what the command does (about) and, in a build folder alone,
// where it can be built (build; core/base/build_on_use.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

struct ExternalCommand {
  std::string name;  // NAME
  std::string group, about;
  std::filesystem::path program;
  std::filesystem::path build;  // empty: there is nothing to build
};

// Each name once: that of libexec, else of the first folder of PATH that has it. Sorted by name, libexec's first.
// What cannot be read is not there. Errors: those of libexec_folder.
std::vector<ExternalCommand> external_commands();

// Runs it in place of this process, built first where it has to be. Errors: Error.
[[noreturn]] void run_external(const ExternalCommand& command, const std::vector<std::string>& words);

// All that the command of libexec says; empty where it is not built.
std::string output_of_external(const std::string& name, const std::vector<std::string>& words);

}  // namespace orthant
