// What is to be run, whether from a STUDY.toml or from the card of a study.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/study/study_file.h"

namespace orthant {

// A new folder among the system's temporary ones, gone with this object.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct OpenedStudy {
  StudyFile study;
  std::string text_hash;                       // that a card asks for; empty: any
  std::vector<std::string> overrides;          // that the card was made with
  std::shared_ptr<const ScratchFolder> files;  // of a card: study.config lies there
};

// Errors: ConfigError for what is neither.
OpenedStudy open_study(const std::string& path);

}  // namespace orthant
