// Reports: one self-contained HTML page about runs, or about a study.
//
// A page has its pictures as inline SVG, a table and a CSV file (a data: link) for each, no script and no reference to
// anything outside. It is well-formed XML too. Thread safety: pure functions of the files they read.
#pragma once

#include <filesystem>
#include <span>

namespace orthant {

// Writes `page` from run folders (metrics.jsonl, config.resolved.toml, trace/summary.json). Runs are compared where
// there are several. What a run does not have is left out, and said. The page is replaced as a whole.
// Errors: ConfigError naming file, line and reason where a folder or metrics.jsonl is missing or cannot be understood;
// Error where the page cannot be written.
void write_run_report(std::span<const std::filesystem::path> runs, const std::filesystem::path& page);

// Writes report.html and study.svg (the one figure for a README) into a study's folder, from its study.json, and
// fits.json where it is there. Points may be waiting or failed. Numbers that are null or absent are shown as missing.
// Errors: as above.
void write_study_report(const std::filesystem::path& study_folder);

}  // namespace orthant
