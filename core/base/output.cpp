#include "core/base/output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace orthant {
namespace {

constexpr std::size_t polled_bytes = 512;  // fits wherever poll sees room (POSIX's smallest PIPE_BUF)
constexpr double patience_seconds = 5;     // of a message with a stream that nobody reads

}  // namespace

OutputSink::OutputSink(int descriptor) : descriptor_(descriptor) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0) {
    gone_ = true;
  } else if (S_ISSOCK(info.st_mode)) {
    kind_ = Kind::socket;
  } else if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) {
    const std::string again = fmt::format("/proc/self/fd/{}", descriptor);
    const int own = open(again.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    kind_ = own >= 0 ? Kind::reopened : Kind::polled;
    descriptor_ = own >= 0 ? own : descriptor;
  }
}

OutputSink::~OutputSink() {
  if (kind_ == Kind::reopened) {
    close(descriptor_);
  }
}

// As write(2), with EAGAIN where that would wait.
long OutputSink::write_some(std::string_view text) const {
  if (kind_ == Kind::socket) {
    return send(descriptor_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (kind_ == Kind::polled) {
    pollfd room{descriptor_, POLLOUT, 0};
    if (poll(&room, 1, 0) == 0) {
      errno = EAGAIN;
      return -1;
    }
    text = text.substr(0, polled_bytes);
  }
  return ::write(descriptor_, text.data(), text.size());
}

void OutputSink::write(std::string_view text, bool matters) {
  const std::size_t room = matters ? 2 * capacity : capacity;
  if (gone_ || waiting_.size() + text.size() > room || (dropped_ > 0 && !matters)) {
    ++dropped_;
    return;
  }
  waiting_ += text;
  flush();
}

void OutputSink::flush() {
  std::size_t done = 0;
  full_ = false;
  while (done < waiting_.size() && !gone_ && !full_) {
    const long written = write_some(std::string_view(waiting_).substr(done));
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno == EAGAIN) {
      break;
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      full_ = true;  // there may be room again
    } else {
      gone_ = errno != EINTR;  // closed, hung up, without a reader
    }
  }
  waiting_.erase(0, gone_ ? waiting_.size() : done);
}

void OutputSink::drain(double seconds) {
  flush();
  while (poll_descriptor() >= 0) {
    pollfd room{descriptor_, POLLOUT, 0};
    if (poll(&room, 1, static_cast<int>(seconds * 1000)) == 0) {
      return;
    }
    flush();
  }
}

std::int64_t OutputSink::take_dropped() {
  return waiting_.size() > capacity / 2 || gone_ ? 0 : std::exchange(dropped_, 0);
}

void prepare_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) {
      open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY);  // the lowest free number: this one
    }
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

void restore_signals_for_exec() {
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
}

void say_line(std::string_view line) {
  OutputSink error(2);
  error.write(std::string(line) + '\n');
  error.drain(patience_seconds);
}

void write_output(std::string_view text) {
  [[maybe_unused]] const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
}

bool finish_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
    return true;
  }
  pollfd reader{1, POLLOUT, 0};
  return poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0;  // a pipe that was closed at the other end
}

}  // namespace orthant
