#include "core/pretrained/workshop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <span>
#include <system_error>
#include <vector>

#include "core/base/file_lock.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// The folder's lock, or -1 where somebody holds it or there are none. Its owner gives it back by closing.
int locked(const fs::path& folder) {
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (opened >= 0 && lock_file(opened, false) != 0) {
    ::close(opened);
    return -1;
  }
  return opened;
}

void remove_what_was_left(const fs::path& output) {
  const std::string prefix = output.filename().string() + ".tmp-";
  std::vector<fs::path> left;
  std::error_code error;
  for (fs::directory_iterator it(output.parent_path(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool numbered =
        name.size() > prefix.size() && name.find_first_not_of("0123456789", prefix.size()) == name.npos;
    if (name.starts_with(prefix) && numbered) {
      left.push_back(it->path());
    }
  }
  for (const fs::path& folder : left) {
    if (const int lock = locked(folder); lock >= 0) {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
      ::close(lock);
    }
  }
}

}  // namespace

Workshop::Workshop(const Disk& disk, const fs::path& output)
    : disk_(disk), path_(output.string() + fmt::format(".tmp-{}", getpid())), output_(output) {
  remove_what_was_left(output);
  disk.create_folder(path_);
  lock_ = locked(path_);
}

Workshop::~Workshop() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) {
    ::close(lock_);
  }
}

void Workshop::write_text(const std::string& name, const std::string& content) const {
  DiskFile file(disk_, path_ / name);
  file.write(std::as_bytes(std::span(content)));
  file.sync_and_close();
}

void Workshop::become_output() const {
  disk_.sync_folder(path_);
  disk_.rename(path_, output_);
  disk_.sync_folder(output_.parent_path());
}

}  // namespace orthant
