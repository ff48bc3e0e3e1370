#include "core/command/program.h"

#include <orthant/error.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/base/output.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* libexec = "libexec";

}  // namespace

fs::path own_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  require(!error, "cannot find this program under /proc/self/exe: {}", error.message());
  return program;
}

fs::path main_program() {
  const fs::path program = own_program(), folder = program.parent_path();
  return folder.parent_path().filename() == libexec ? folder.parent_path().parent_path() / "bin" / "orthant" : program;
}

fs::path libexec_folder() {
  return main_program().parent_path().parent_path() / libexec / "orthant";
}

std::vector<std::string> own_command(std::vector<std::string> words) {
  words.insert(words.begin(), own_program().string());
  return words;
}

void become(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  finish_output();
  restore_signals_for_exec();
  execvp(argv[0], argv.data());  // which gives a script without "#!" to the shell
  fail("cannot start {}: {}", command[0], std::generic_category().message(errno));
}

}  // namespace orthant
