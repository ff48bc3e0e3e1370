#include "core/run/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <orthant/error.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <ctime>
#include <map>
#include <sstream>
#include <system_error>
#include <thread>

#include "core/base/file_lock.h"
#include "core/base/host_name.h"
#include "core/base/text_file.h"
#include "parallel/process_state.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds between_tries{20};

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

// "key value" lines.
std::map<std::string, std::string> fields_of(const fs::path& file) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(read_text_file(file, 4096).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) {
      fields[line.substr(0, space)] = line.substr(space + 1);
    }
  }
  return fields;
}

// Whether the process that wrote the file was of this machine and has ended: a zombie, too, as long as nobody asks for
// its exit code.
bool holder_is_gone(std::map<std::string, std::string>& fields) {
  const std::string& text = fields["pid"];
  pid_t pid = 0;
  std::from_chars(text.data(), text.data() + text.size(), pid);
  if (fields["host"] != host_name() || pid <= 0) {
    return false;
  }
  return (kill(pid, 0) != 0 && errno == ESRCH) || process_state(pid) == 'Z';
}

[[noreturn]] void refuse(const fs::path& run_folder, const fs::path& file, const std::string& other_folder) {
  std::map<std::string, std::string> fields = fields_of(file);
  if (fields.empty()) {
    throw ConfigError(fmt::format("the run folder {} is in use by a job that is just starting (lock {})",
                                  run_folder.string(), file.string()));
  }
  throw ConfigError(fmt::format(
      "the run folder {} is in use: by process {} on {}{}, since {}, job {} (lock {}). Wait for that job or end it; or "
      "give this one another folder, {}",
      run_folder.string(), fields["pid"], fields["host"],
      holder_is_gone(fields) ? " (which has ended; one that it started has not)" : "", fields["since"], fields["job"],
      file.string(), other_folder));
}

}  // namespace

RunLock::RunLock(const fs::path& run_folder, const std::string& job, Holder holder, std::chrono::milliseconds patience,
                 const std::string& other_folder) {
  std::error_code failed;
  // One lock for all names of a folder, which may be a link.
  const fs::path folder = fs::is_symlink(run_folder, failed) ? fs::weakly_canonical(run_folder, failed) : run_folder;
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : ".";
  fs::create_directories(parent, failed);
  if (failed) {
    throw ConfigError(
        fmt::format("cannot make the folder {}: {}; name another by run.directory", parent.string(), failed.message()));
  }
  const fs::path file = parent / ("." + folder.filename().string() + ".lock");
  const auto without = [&](const char* what, int error) {
    missing_ = fmt::format("cannot {} {}: {}; nothing but ids keeps another job out of this run folder", what,
                           file.string(), std::generic_category().message(error));
  };
  const int close_on_exec = holder == Holder::this_process ? O_CLOEXEC : 0;
  file_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | close_on_exec, 0644);
  if (file_ < 0) {
    const int error = errno;
    if (error == ELOOP) {  // what it leads to is not ours to write
      throw ConfigError(fmt::format("the lock {} is a symbolic link: remove it", file.string()));
    }
    file_ = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | close_on_exec);  // another user's can be locked all the same
    if (file_ < 0) {
      without("open", error);
      return;
    }
  }
  const Clock::time_point begin = Clock::now();
  int error = lock_file(file_, false);
  while (error == EWOULDBLOCK) {
    std::map<std::string, std::string> fields = fields_of(file);
    if (!holder_is_gone(fields) || Clock::now() - begin > patience) {
      ::close(file_);
      refuse(run_folder, file, other_folder);
    }
    std::this_thread::sleep_for(between_tries);
    error = lock_file(file_, false);
  }
  if (error != 0) {
    ::close(file_);
    file_ = -1;
    without("lock", error);
    return;
  }
  const std::string text = fmt::format("host {}\npid {}\nsince {}\njob {}\n", host_name(), getpid(), now_text(), job);
  // The lock is what counts: without these words a refusal has fewer.
  [[maybe_unused]] const bool said =
      ::ftruncate(file_, 0) == 0 && ::pwrite(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

RunLock::~RunLock() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

}  // namespace orthant
