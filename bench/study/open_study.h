// What is to be run, whether from a STUDY.toml or from the card of a study.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/study/study_file.h"
#include "core/run/scratch_folder.h"

namespace orthant {

struct OpenedStudy {
  StudyFile study;
  std::string text_hash;                       // that a card asks for; empty: any
  std::vector<std::string> overrides;          // that the card was made with
  std::shared_ptr<const ScratchFolder> files;  // of a card: study.config lies there
};

// Errors: ConfigError for what is neither.
OpenedStudy open_study(const std::string& path);

}  // namespace orthant
