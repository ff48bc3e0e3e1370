#include "core/run/scratch_folder.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "core/base/file_lock.h"
#include "core/base/list_folder.h"
#include "core/base/temporary_folder.h"
#include "core/run/run_ids.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* folder_prefix = "orthant-scratch-";
constexpr const char* lock_name = "lock";

// Another user's are left alone: they cannot be opened, or not be removed.
void remove_what_was_left(const fs::path& among) {
  std::error_code error;
  for (const fs::path& path : list_folder(among, error)) {
    if (!path.filename().string().starts_with(folder_prefix)) {
      continue;
    }
    const int lock = ::open((path / lock_name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock >= 0 && lock_file(lock, false) == 0) {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
    if (lock >= 0) {
      ::close(lock);
    }
  }
}

}  // namespace

ScratchFolder::ScratchFolder() {
  const fs::path among = temporary_folder();
  remove_what_was_left(among);
  path_ = among / (folder_prefix + new_id());
  std::error_code error;
  fs::create_directory(path_, error);
  require(!error, "cannot make the folder {}: {}. Set TMPDIR to a folder with room", path_.string(), error.message());
  // It has its name when it is held: nobody meets it without.
  const fs::path early = path_ / "early";
  lock_ = ::open(early.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  int failed = lock_ < 0 ? errno : lock_file(lock_, false);
  if (failed == 0 && ::rename(early.c_str(), (path_ / lock_name).c_str()) != 0) {
    failed = errno;
  }
  if (failed != 0) {
    const std::string why = std::generic_category().message(failed);
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (lock_ >= 0) {
      ::close(lock_);
    }
    fail("cannot lock the folder {}: {}. Set TMPDIR to a folder of another file system", path_.string(), why);
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

}  // namespace orthant
