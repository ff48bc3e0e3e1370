#include "core/command/external.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <set>
#include <system_error>

#include "core/base/build_on_use.h"
#include "core/base/list_folder.h"
#include "core/base/text_file.h"
#include "core/command/program.h"
#include "core/run/scratch_folder.h"
#include "parallel/launch/child_process.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "orthant-";
constexpr std::string_view about_suffix = ".about";

bool can_run(const fs::path& file) {
  std::error_code error;
  return fs::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0;
}

// NAME of orthant-NAME; empty for other files, and for names that nobody would type.
std::string name_of(const fs::path& file) {
  std::string name = file.filename().string();
  if (!name.starts_with(prefix)) {
    return "";
  }
  name.erase(0, prefix.size());
  const bool plain = std::all_of(name.begin(), name.end(),
                                 [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; });
  return plain && !name.empty() && std::isalnum(static_cast<unsigned char>(name[0])) != 0 ? name : "";
}

void read_about(const fs::path& file, ExternalCommand& to) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos) {
      continue;
    }
    const std::string key = line.substr(0, equals), value = line.substr(equals + 3);
    if (key == "group") {
      to.group = value;
    } else if (key == "about") {
      to.about = value;
    } else if (key == "build") {
      to.build = value;
    }
  }
}

void add_libexec(std::vector<ExternalCommand>& to) {
  const fs::path folder = libexec_folder();
  std::error_code ignored;
  std::set<std::string> names;
  for (const fs::path& file : list_folder(folder, ignored)) {
    const std::string name = name_of(file.extension() == about_suffix ? file.stem() : file);
    if (!name.empty()) {
      names.insert(name);
    }
  }
  for (const std::string& name : names) {
    ExternalCommand command{
        .name = name, .group = {}, .about = {}, .program = folder / (std::string(prefix) + name), .build = {}};
    read_about(command.program.string() + std::string(about_suffix), command);
    if (!command.build.empty() || can_run(command.program)) {
      to.push_back(std::move(command));
    }
  }
}

// The folders of PATH; an empty one is the present folder, as for a shell.
std::vector<fs::path> path_folders() {
  const char* path = std::getenv("PATH");
  std::vector<fs::path> folders;
  for (std::string_view rest = path == nullptr ? "" : path; path != nullptr;) {
    const std::size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    folders.emplace_back(folder.empty() ? "." : folder);
    if (colon == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(colon + 1);
  }
  return folders;
}

void add_path(std::vector<ExternalCommand>& to) {
  std::set<std::string> seen;
  for (const ExternalCommand& command : to) {
    seen.insert(command.name);
  }
  std::vector<ExternalCommand> found;
  for (const fs::path& folder : path_folders()) {
    std::error_code ignored;
    for (const fs::path& file : list_folder(folder, ignored)) {
      const std::string name = name_of(file);
      if (!name.empty() && can_run(file) && seen.insert(name).second) {
        found.push_back({.name = name, .group = {}, .about = {}, .program = file, .build = {}});
      }
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  to.insert(to.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
}

}  // namespace

std::vector<ExternalCommand> external_commands() {
  std::vector<ExternalCommand> commands;
  add_libexec(commands);
  add_path(commands);
  return commands;
}

void run_external(const ExternalCommand& command, const std::vector<std::string>& words) {
  build_on_use(command.program, std::string(prefix) + command.name);
  std::vector<std::string> all = {command.program.string()};
  all.insert(all.end(), words.begin(), words.end());
  become(all);
}

std::string output_of_external(const std::string& name, const std::vector<std::string>& words) {
  const fs::path program = libexec_folder() / (std::string(prefix) + name);
  if (!can_run(program)) {
    return "";
  }
  const ScratchFolder scratch;
  const fs::path log = scratch.path() / "output";
  std::vector<std::string> command = {program.string()};
  command.insert(command.end(), words.begin(), words.end());
  ChildProcess(command, log).wait();
  return read_text_file(log).value_or("");
}

}  // namespace orthant
