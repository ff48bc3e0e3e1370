#include "core/base/text_file.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace orthant {

std::optional<std::string> read_text_file(const std::filesystem::path& path, std::size_t longest) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe is not waited for
  if (file < 0 && errno == ENOENT) {
    return std::nullopt;
  }
  int error = file < 0 ? errno : 0;
  std::string text;
  for (ssize_t count = 1; count != 0 && error == 0 && text.size() < longest;) {
    const std::size_t before = text.size();
    text.resize(before + std::min(longest - before, std::size_t{1} << 16));
    count = ::read(file, text.data() + before, text.size() - before);
    error = count < 0 && errno != EINTR ? errno : 0;
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
  if (file >= 0) {
    ::close(file);
  }
  require(error == 0, "cannot read '{}': {}", path.string(), std::generic_category().message(error));
  return text;
}

}  // namespace orthant
