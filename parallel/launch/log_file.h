// LogFile: the lines of a rank on disk. A disk that is full costs lines, never the training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "parallel/launch/descriptor.h"

namespace orthant {

class LogFile {
 public:
  // Opened for writing, at its end where `append`. Errors: Error where it cannot be.
  LogFile(int rank, std::filesystem::path path, bool append);

  // False, once for every row of lines that are lost, where the line could not be written: `problem` says why. Lines
  // that can be written later tell how many are missing before them.
  bool line(std::string_view text, std::string* problem);

  const std::filesystem::path& path() const { return path_; }

 private:
  bool write_all(std::string_view text);

  std::filesystem::path path_;
  Descriptor file_;
  bool cut_ = false;  // the last line was written in part
  std::int64_t lost_ = 0;
};

}  // namespace orthant
