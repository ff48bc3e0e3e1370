#include "core/base/cut_files.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace orthant {
namespace {

// All below runs within a signal handler: no memory is asked for, and no lock taken.

void put(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::uintptr_t take_hexadecimal(std::string_view& text) {
  std::uintptr_t value = 0;
  while (!text.empty()) {
    const char c = text.front();
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) {
      break;
    }
    value = value * 16 + static_cast<std::uintptr_t>(digit);
    text.remove_prefix(1);
  }
  return value;
}

// The path in a line of /proc/self/maps ("BEGIN-END rights offset device inode  PATH"), where it covers the address.
std::string_view path_at(std::string_view line, std::uintptr_t address) {
  const std::uintptr_t begin = take_hexadecimal(line);
  if (line.empty() || line.front() != '-') {
    return {};
  }
  line.remove_prefix(1);
  const std::uintptr_t end = take_hexadecimal(line);
  const std::size_t path = line.find('/');
  return begin <= address && address < end && path != line.npos ? line.substr(path) : std::string_view();
}

// False: no file is mapped there.
bool say_which(std::uintptr_t address) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 8192> held;  // the longest path, and what stands before it
  std::size_t size = 0;
  bool said = false;
  for (ssize_t more = 0; maps >= 0 && !said;) {
    more = ::read(maps, held.data() + size, held.size() - size);
    if (more <= 0) {
      break;
    }
    size += static_cast<std::size_t>(more);
    std::string_view left(held.data(), size);
    for (std::size_t end = left.find('\n'); end != left.npos && !said; end = left.find('\n')) {
      if (const std::string_view path = path_at(left.substr(0, end), address); !path.empty()) {
        put("orthant: '");
        put(path);
        put("' was cut short while it was read, or what it lies on failed or is full: write a file under another name "
            "and rename it\n");
        said = true;
      }
      left.remove_prefix(end + 1);
    }
    for (std::size_t i = 0; i < left.size(); ++i) {  // what is left begins the next part
      held[i] = left[i];
    }
    size = left.size() == held.size() ? 0 : left.size();
  }
  if (maps >= 0) {
    ::close(maps);
  }
  return said;
}

void on_bus_error(int number, siginfo_t* info, void*) {
  if (info->si_code == BUS_ADRERR && say_which(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    std::_Exit(static_cast<int>(ExitCode::failure));
  }
  // What failed is tried again, and meets the system's way.
  std::signal(number, SIG_DFL);
}

}  // namespace

void explain_cut_files() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace orthant
