#include "apps/pretrained/workshop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <orthant/error.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/file_lock.h"
#include "core/base/list_folder.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// A folder that is locked as long as this is. Where there are no locks it is not. wait: for the folder above, which the
// user may have named by a link; ours are none.
class Locked {
 public:
  Locked(const fs::path& folder, bool wait) {
    opened_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | (wait ? 0 : O_NOFOLLOW));
    error_ = opened_ < 0 ? errno : lock_file(opened_, false);
    for (int tries = 0; wait && error_ == EWOULDBLOCK && tries < 200; ++tries) {  // two seconds
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      error_ = lock_file(opened_, false);
    }
  }
  ~Locked() {
    if (opened_ >= 0) {
      ::close(opened_);
    }
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  bool mine() const { return error_ == 0; }
  bool of_another() const { return error_ == EWOULDBLOCK; }
  int take() { return mine() ? std::exchange(opened_, -1) : -1; }

 private:
  int opened_, error_;
};

std::string others_of(const fs::path& output) {
  return output.filename().string() + ".tmp-";
}

// What killed processes have left beside the output goes. Errors: ConfigError for a process that lives.
void clear(const fs::path& output) {
  const std::string prefix = others_of(output);
  std::vector<fs::path> left;
  std::error_code error;
  for (const fs::path& path : list_folder(output.parent_path(), error)) {
    const std::string name = path.filename().string();
    const bool numbered =
        name.size() > prefix.size() && name.find_first_not_of("0123456789", prefix.size()) == name.npos;
    if (name.starts_with(prefix) && numbered) {
      left.push_back(path);
    }
  }
  for (const fs::path& folder : left) {
    const Locked lock(folder, false);
    if (lock.of_another()) {
      throw ConfigError(fmt::format("process {} is writing '{}' just now: wait for its end, or give another folder",
                                    folder.filename().string().substr(prefix.size()), output.string()));
    }
    if (lock.mine()) {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
  }
}

}  // namespace

Workshop::Workshop(const Disk& disk, const fs::path& output)
    : disk_(disk), path_(output.string() + fmt::format(".tmp-{}", getpid())), output_(output) {
  disk.create_folder(output.parent_path());
  const Locked turn(output.parent_path(), true);  // two that begin at once take turns
  clear(output);
  disk.create_folder(path_);
  lock_ = Locked(path_, false).take();
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
