#include "core/base/sync.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace orthant {
namespace {

[[noreturn]] void cannot(const char* what, const std::filesystem::path& path, int error) {
  fail("cannot {} '{}': {}", what, path.string(), std::generic_category().message(error));
}

void sync(const std::filesystem::path& path, bool folder) {
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (folder ? O_DIRECTORY : 0));
  if (opened < 0) {
    if (folder && errno == EACCES) {
      return;
    }
    cannot(folder ? "open the folder" : "open", path, errno);
  }
  const int failed = ::fsync(opened);
  const int error = errno;
  ::close(opened);
  if (failed != 0 && error != EINVAL) {  // EINVAL: of a kind that cannot be synced
    cannot(folder ? "sync the folder" : "sync", path, error);
  }
}

}  // namespace

void sync_file(const std::filesystem::path& path) {
  sync(path, false);
}

void sync_folder(const std::filesystem::path& path) {
  sync(path, true);
}

}  // namespace orthant
