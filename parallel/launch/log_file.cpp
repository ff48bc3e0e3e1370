#include "parallel/launch/log_file.h"

#include <orthant/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace orthant {

LogFile::LogFile(int rank, std::filesystem::path path, bool append)
    : path_(std::move(path)),
      file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666)) {
  if (!file_.is_open()) {
    fail("cannot write the log of rank {} to {}: {}", rank, path_.string(), strerror(errno));
  }
}

bool LogFile::line(std::string_view text, std::string* problem) {
  std::string all = cut_ ? "\n" : "";
  if (lost_ > 0) {
    all += fmt::format("[{} lines are missing here: they could not be written]\n", lost_);
  }
  all.append(text).push_back('\n');
  if (write_all(all)) {
    lost_ = 0;
    return true;
  }
  *problem = strerror(errno);
  return lost_++ > 0;
}

bool LogFile::write_all(std::string_view text) {
  bool begun = false;
  while (!text.empty()) {
    const ssize_t written = ::write(file_.get(), text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
      begun = true;
    } else if (written == 0 || errno != EINTR) {
      cut_ = cut_ || begun;
      return false;
    }
  }
  cut_ = false;
  return true;
}

}  // namespace orthant
