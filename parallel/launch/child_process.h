// A program that this one starts and waits for.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "parallel/launch/rank_process.h"

namespace orthant {

// It is killed when this process dies, however it dies. What it prints goes to a file.
// Thread safety: none; REQUIRES: the thread that makes it lives as long as it does.
class ChildProcess {
 public:
  // command[0]: a path. The log is appended to. Errors: Error where no process or log can be made.
  ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& log);
  ~ChildProcess();  // kills it where it still runs
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  // False from the call on that finds it ended.
  bool is_running();
  // Until it has ended.
  const Ending& wait();
  // REQUIRES: not running.
  const Ending& ending() const { return ending_; }
  void signal(int number) const;

 private:
  void reap(int options);

  pid_t pid_ = -1;  // -1: it has ended, or was moved
  Ending ending_;
};

}  // namespace orthant
