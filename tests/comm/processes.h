// Ranks as forked processes, with the test as their launcher.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/local/local_communicator.h"
#include "parallel/local/segment.h"

namespace orthant::test {

struct Ended {
  int signal = 0;  // that killed it, or 0
  int code = 0;
  std::string message;                       // of its exception
  std::chrono::steady_clock::time_point at;  // when the launcher saw it end
};

// Runs body on `world` processes and reports how each ended; tells the world of killed ranks as a launcher does.
inline std::vector<Ended> run_processes(int world, const std::function<void(Communicator&)>& body,
                                        double timeout_seconds = 60, const SegmentOptions& options = {}) {
  const std::shared_ptr<LocalSegment> segment = LocalSegment::create(world, options);
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (int rank = 0; rank < world; ++rank) {
    int ends[2];
    require(pipe(ends) == 0, "pipe failed");
    const pid_t pid = fork();
    require(pid >= 0, "fork failed");
    if (pid == 0) {
      close(ends[0]);
      int code = 0;
      try {
        const auto communicator = make_local_communicator(LocalSegment::attach(segment->fd()), rank, timeout_seconds);
        body(*communicator);
        segment->set_state(rank, RankState::finished);
      } catch (const std::exception& error) {
        segment->mark_failed(rank, "rank " + std::to_string(rank) + " failed: " + error.what());
        code = write(ends[1], error.what(), std::strlen(error.what())) >= 0 ? 1 : 2;
      }
      _exit(code);
    }
    close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  std::vector<Ended> ended(pids.size());
  for (int left = world; left > 0; --left) {
    int status = 0;
    const pid_t pid = wait(&status);
    const auto rank = static_cast<std::size_t>(std::find(pids.begin(), pids.end(), pid) - pids.begin());
    require(rank < pids.size(), "an unknown child ended");
    ended[rank].at = std::chrono::steady_clock::now();
    if (WIFSIGNALED(status)) {
      ended[rank].signal = WTERMSIG(status);
      segment->mark_failed(static_cast<int>(rank), "rank " + std::to_string(rank) + " was killed by signal " +
                                                       std::to_string(ended[rank].signal) + " (" +
                                                       strsignal(ended[rank].signal) + ")");
    }
    ended[rank].code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    char text[2000];
    const ssize_t n = read(pipes[rank], text, sizeof(text));
    ended[rank].message.assign(text, n > 0 ? static_cast<std::size_t>(n) : 0);
    close(pipes[rank]);
  }
  return ended;
}

}  // namespace orthant::test
