#include "parallel/launch/console.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace orthant {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

bool are_one_file(int a, int b) {
  struct stat first {
  }, second{};
  return a == b || (fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
                    first.st_ino == second.st_ino);
}

}  // namespace

Console::Console(int output, int error, bool plain)
    : output_descriptor_(output),
      output_(output),
      output_is_terminal_(!plain && isatty(output) == 1),
      error_is_terminal_(!plain && isatty(error) == 1) {
  if (!are_one_file(output, error)) {
    error_.emplace(error);
  }
}

int Console::columns() const {
  if (!output_is_terminal_) {
    return 0;
  }
  winsize size{};
  const bool known = ioctl(output_descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void Console::say(std::string_view text) {
  write_line(error(), error_is_terminal_, std::string("launch: ").append(text), true);
}

void Console::progress(std::string_view text) {
  if (output_is_terminal_) {
    progress_ = text;
    if (output_.waiting() == 0) {  // an old one is of no use later
      output_.write(std::string(kClearLine) + progress_);
    }
  }
}

void Console::end_progress() {
  if (!progress_.empty()) {
    output_.write("\n");
    progress_.clear();
  }
}

void Console::tell_of_dropped(OutputSink& sink) {
  if (const auto dropped = sink.take_dropped(); dropped > 0) {
    sink.write(
        fmt::format("launch: {} lines are missing here, nobody read them in time: the logs have them\n", dropped),
        true);
  }
}

void Console::write_line(OutputSink& sink, bool is_terminal, std::string_view line, bool matters) {
  tell_of_dropped(sink);
  const bool above_progress = is_terminal && !progress_.empty();
  std::string text = above_progress ? std::string(kClearLine) : std::string();
  text.append(line).push_back('\n');
  sink.write(text, matters);
  if (above_progress && output_.waiting() == 0) {
    output_.write(progress_);
  }
}

void Console::flush() {
  for (OutputSink* sink : {&output_, &error()}) {
    sink->flush();
    tell_of_dropped(*sink);
  }
}

std::size_t Console::waiting() const {
  return output_.waiting() + (error_ ? error_->waiting() : 0);
}

void Console::watch(std::vector<pollfd>& watched) const {
  for (const OutputSink* sink : {&output_, error_ ? &*error_ : nullptr}) {
    if (sink != nullptr && sink->poll_descriptor() >= 0) {
      watched.push_back({sink->poll_descriptor(), POLLOUT, 0});
    }
  }
}

}  // namespace orthant
