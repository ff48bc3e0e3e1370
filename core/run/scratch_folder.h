// ScratchFolder: room for files that go with the process that made them.
#pragma once

#include <filesystem>

namespace orthant {

// A folder among the system's temporary files. What processes that were killed have left there is removed first: a
// process holds a lock on its own as long as it lives. Thread safety: none.
class ScratchFolder {
 public:
  // Errors: Error where no folder can be made.
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }  // empty but for the lock

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace orthant
