// Whose a run folder is: a run and its present job, by numbers that no two share.
//
// Locks keep two jobs out of one folder where the file system has them. These ids are compared where it has none, and
// show afterwards what belongs together: they stand in config.resolved.toml, metrics.jsonl and the manifests.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace orthant {

// Each is 128 random bits as hexadecimal digits; empty: not known (written before there were ids).
struct RunIds {
  std::string run;  // the same from step 1 on, through every resume in the folder
  std::string job;  // one start of it
  bool operator==(const RunIds&) const = default;
};

std::string new_id();

// The first lines of config.resolved.toml, comments.
std::string text_of(const RunIds& ids);

// What config.resolved.toml of the folder says; empty where there is none. Errors: Error where it cannot be read.
RunIds ids_in(const std::filesystem::path& run_folder);

// Why a folder is not this job's any more: config.resolved.toml in it names another run or job, or says nothing while
// this job's lies in a folder NAME.N beside it, where another job has moved it. Empty: it is this job's; a file that is
// missing or says nothing is no other job. Errors: Error where that cannot be read.
std::string why_not_own(const std::filesystem::path& run_folder, const RunIds& own);

// Refuses to write into a folder that is another job's by why_not_own. Errors: ConfigError with both ids; Error where
// that cannot be read.
void require_own_folder(const std::filesystem::path& run_folder, const RunIds& own);

// Refuses a checkpoint of another run than its folder's. Ids that are not known fit everything.
// Errors: ConfigError with both ids. state: of the manifest.
void require_same_run(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& state,
                      const std::filesystem::path& run_folder, const std::string& run);

// The run id in a manifest's state; empty where it has none.
std::string run_id_in(const std::map<std::string, std::string>& state);

}  // namespace orthant
