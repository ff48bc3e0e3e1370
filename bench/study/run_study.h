// Runs a study: its points side by side, then each shape alone for its time; docs/guides/study.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <orthant/error.h>

#include "bench/study/card.h"
#include "bench/study/grid.h"
#include "bench/study/study_file.h"

namespace orthant {

struct StudyOptions {
  bool resume = false;
  bool dry_run = false;                // the grid, or what `only` names of it, is printed, nothing is written or run
  std::vector<std::string> only;       // ids; empty: all points
  std::vector<std::string> overrides;  // of every point, after its own settings
  std::string command, version;        // for the card
  bool terminal = false;               // a line that overwrites itself tells how far the study is
};

// `path`: a STUDY.toml, or the card (study.json) of a study that is to be run again. Writes the card before the first
// run. Points that failed stay failed and do not end the study. A request to stop (stop_signals(), which the caller has
// blocked) lets the points that run save.
// Returns ok; failure where points failed; stopped_resumable. Errors: ConfigError before anything is written; Error,
// with 128 + the signal's number where a second request comes, which kills them.
ExitCode run_study(const std::string& path, const StudyOptions& options);

}  // namespace orthant
