// RunLock: one job at a time in a run folder.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace orthant {

// A lock on the file .NAME.lock beside the run folder NAME (renaming the folder does not carry it away), held until
// the last process that has its descriptor is gone, however it ends. The file stays; it says who held it last.
class RunLock {
 public:
  enum class Holder {
    this_process,  // and no child of it
    children_too,  // those that this process starts hold it as long as they live
  };

  // Takes it; makes the folder that the run folder lies in. Where a job of this machine has just been killed, it waits
  // up to `patience` for that job's processes to go. job: an id, for whoever is refused. other_folder: how the user
  // gives this job another folder. Errors: ConfigError with host, process and time of the holder; Error where the
  // folder cannot be made.
  RunLock(const std::filesystem::path& run_folder, const std::string& job, Holder holder,
          std::chrono::milliseconds patience = std::chrono::seconds(5),
          const std::string& other_folder = "--set run.name=NAME");
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Why there is no lock, for the user: the file system has none, or the file cannot be made. Empty: it is held.
  const std::string& missing() const { return missing_; }

 private:
  int file_ = -1;
  std::string missing_;
};

}  // namespace orthant
