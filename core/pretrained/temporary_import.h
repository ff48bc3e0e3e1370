// TemporaryImport: room for an import that goes with the process that made it.
#pragma once

#include <filesystem>

namespace orthant {

// A folder among the system's temporary files. What processes that were killed have left there is removed first: a
// process holds a lock on its own as long as it lives. Thread safety: none.
class TemporaryImport {
 public:
  // Errors: Error where no folder can be made.
  TemporaryImport();
  ~TemporaryImport();
  TemporaryImport(const TemporaryImport&) = delete;
  TemporaryImport& operator=(const TemporaryImport&) = delete;

  std::filesystem::path run() const { return folder_ / "run"; }  // not made yet

 private:
  std::filesystem::path folder_;
  int lock_ = -1;
};

}  // namespace orthant
