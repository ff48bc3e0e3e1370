#include "core/base/build_on_use.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <orthant/error.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/build.h"
#include "core/base/file_lock.h"
#include "core/base/output.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

bool is_built(const fs::path& file) {
  std::error_code error;
  return fs::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0;
}

// Whether it is missing, or older than the library that it would meet.
bool is_to_be_built(const fs::path& file) {
  Dl_info library = {};
  std::error_code failed;
  if (!is_built(file) || dladdr(reinterpret_cast<void*>(&build_of_library), &library) == 0) {
    return !is_built(file);
  }
  const auto of_library = fs::last_write_time(library.dli_fname, failed);
  const auto of_file = failed ? of_library : fs::last_write_time(file, failed);
  return !failed && of_file < of_library;
}

std::string jobs() {
  const char* asked = std::getenv("ORTHANT_JOBS");
  return asked != nullptr && *asked != '\0' ? asked : std::to_string(std::max(1u, std::thread::hardware_concurrency()));
}

// In this process's group, so that Ctrl-C ends compilers too.
int run_build(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) {
    fail("cannot start {}: {}", command.front(), std::generic_category().message(errno));
  }
  if (child == 0) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    restore_signals_for_exec();
    execvp(words.front(), words.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

fs::path build_folder_of(const fs::path& file) {
  constexpr std::string_view key = "build = ";
  std::ifstream lines(file.string() + ".about");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) {
      return line.substr(key.size());
    }
  }
  return {};
}

// As ./launch and ./runtests do: so many compilers at a time, one build at a time in the folder of all builds. The
// compilers hold the lock too: it stays as long as one of them lives, also where this process is killed.
void build_on_use(const fs::path& file, const std::string& target) {
  const fs::path folder = build_folder_of(file);
  if (folder.empty() || !is_to_be_built(file)) {
    return;
  }
  if (std::getenv("ORTHANT_NO_BUILD") != nullptr) {
    fail("{} is not built for this library, and ORTHANT_NO_BUILD is set", target);
  }
  const fs::path lock = folder.parent_path() / ".lock";
  const int held = ::open(lock.c_str(), O_RDWR | O_CREAT, 0644);  // NOLINT: no O_CLOEXEC, see above
  if (held >= 0) {
    lock_file(held, true);
  }
  if (is_to_be_built(file)) {  // else another process has built it meanwhile
    say("orthant: building {} in {}: once, mostly less than a minute", target, folder.string());
    const int code = run_build({"cmake", "--build", folder.string(), "--target", target, "--parallel", jobs()});
    require(code == 0, "{} could not be built: cmake --build ended with code {}", target, code);
  }
  if (held >= 0) {
    close(held);
  }
}

}  // namespace orthant
