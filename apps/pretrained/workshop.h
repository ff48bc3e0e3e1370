// Workshop: a folder beside the output, OUTPUT.tmp-PID, in which files are made; it becomes the output at once, or
// goes. A process that was killed leaves its own: the next one for the same output removes it. One whose process lives
// is locked, where the file system has locks, and there is no second one beside it.
#pragma once

#include <filesystem>
#include <string>

#include "core/checkpoint/disk.h"

namespace orthant {

class Workshop {
 public:
  // Errors: ConfigError where another process is writing `output`.
  Workshop(const Disk& disk, const std::filesystem::path& output);
  ~Workshop();
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write_text(const std::string& name, const std::string& content) const;
  // Renames the folder to `output`, and syncs. REQUIRES: there is none, or an empty one.
  void become_output() const;

 private:
  const Disk& disk_;
  std::filesystem::path path_, output_;
  int lock_ = -1;  // of the folder, while this process lives
};

}  // namespace orthant
