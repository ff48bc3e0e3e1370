#include "core/checkpoint/appears.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

namespace orthant {
namespace {

// Has the system ask the server for what is at the path.
void look_anew(const std::filesystem::path& path, int kind) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | kind);
  if (file >= 0) {
    ::close(file);
  }
}

}  // namespace

bool appears(const std::filesystem::path& path, std::chrono::steady_clock::duration patience,
             std::optional<std::uint64_t> bytes) {
  constexpr std::chrono::milliseconds between_looks{50};
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    struct stat found {};
    if (::stat(path.c_str(), &found) == 0 &&
        (!bytes.has_value() || (S_ISREG(found.st_mode) && static_cast<std::uint64_t>(found.st_size) == *bytes))) {
      return true;
    }
    if (std::chrono::steady_clock::now() >= end) {
      return false;
    }
    look_anew(path.has_parent_path() ? path.parent_path() : ".", O_DIRECTORY);
    look_anew(path, 0);
    std::this_thread::sleep_for(between_looks);
  }
}

}  // namespace orthant
