#include "parallel/launch/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

namespace orthant {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

}  // namespace

Console::Console(int output, int error, bool plain)
    : output_(output),
      error_(error),
      output_is_terminal_(!plain && isatty(output) == 1),
      error_is_terminal_(!plain && isatty(error) == 1) {}

int Console::columns() const {
  if (!output_is_terminal_) {
    return 0;
  }
  winsize size{};
  const bool known = ioctl(output_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void Console::progress(std::string_view text) {
  if (output_is_terminal_) {
    progress_ = text;
    write_all(output_, std::string(kClearLine) + progress_);
  }
}

void Console::end_progress() {
  if (!progress_.empty()) {
    write_all(output_, "\n");
    progress_.clear();
  }
}

void Console::write_line(int descriptor, std::string_view line) {
  const bool on_terminal = descriptor == output_ ? output_is_terminal_ : error_is_terminal_;
  const bool above_progress = on_terminal && !progress_.empty();
  std::string text = above_progress ? std::string(kClearLine) : std::string();
  text.append(line).push_back('\n');
  write_all(descriptor, text);
  if (above_progress) {
    write_all(output_, progress_);
  }
}

// An output that is gone (a closed pipe, a full disk) must not end a training run: the logs have every line.
void Console::write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{descriptor, POLLOUT, 0};
      poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace orthant
