#include "parallel/launch/mpirun_process.h"

#include <orthant/error.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "core/base/output.h"
#include "parallel/launch/signal_scope.h"
#include "parallel/launch/stop_requests.h"

namespace orthant {
namespace {

constexpr int between_looks_ms = 300;
constexpr int held_back[] = {SIGINT, SIGTERM, SIGHUP};

// Of a line "NAME:\tMASK" in /proc/PID/status: signal N is bit N - 1.
std::uint64_t signals_of(pid_t process, std::string_view name) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) {
      return std::strtoull(line.c_str() + name.size(), nullptr, 16);
    }
  }
  return 0;
}

bool holds(std::uint64_t signals, int number) {
  return (signals >> (number - 1) & 1) != 0;
}

std::vector<char*> words_for_exec(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  return words;
}

class MpirunProcess {
 public:
  explicit MpirunProcess(const std::vector<std::string>& command) {
    const std::vector<char*> words = words_for_exec(command);
    const pid_t launcher = getpid();
    const sigset_t mask = mask_of_mpirun();
    process_ = fork();
    if (process_ < 0) {
      fail("cannot start mpirun: {}", strerror(errno));
    }
    if (process_ == 0) {
      become(words, mask, launcher);
    }
  }

  int run() {
    for (;;) {
      pollfd watched = {signals_.descriptor(), POLLIN, 0};
      poll(&watched, 1, between_looks_ms);
      while (const std::optional<int> number = signals_.next()) {
        hear(*number);
      }
      look_at_its_signals();
      tell();
      int status = 0;
      if (waitpid(process_, &status, WNOHANG) == process_) {
        return killed_by_ != 0 ? 128 + killed_by_ : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
    }
  }

 private:
  sigset_t mask_of_mpirun() const {
    sigset_t mask = signals_.mask_for_ranks(false);
    for (const int number : held_back) {
      sigaddset(&mask, number);
    }
    return mask;
  }

  // Only calls that are safe between fork and exec.
  [[noreturn]] static void become(const std::vector<char*>& words, const sigset_t& mask, pid_t launcher) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // Open MPI's daemons then end the ranks
    if (getppid() != launcher) {
      _exit(128 + SIGKILL);
    }
    restore_signals_for_exec();
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    execvp(words[0], words.data());
    _exit(127);
  }

  void hear(int number) {
    if (number == SIGCHLD) {
      return;
    }
    if (number == SIGTSTP) {
      kill(process_, SIGTSTP);
      kill(getpid(), SIGSTOP);
      kill(process_, SIGCONT);
      return;
    }
    switch (requests_.hear(number)) {
      case StopRequests::Meaning::nothing: return;
      case StopRequests::Meaning::stop: say("launch: {}", stop_text(number)); return;
      case StopRequests::Meaning::kill:
        say("launch: {} again: killing the ranks", strsignal(number));
        killed_by_ = number;
        kill(process_, SIGKILL);
    }
  }

  // One that was sent to mpirun alone waits there for ever.
  void look_at_its_signals() {
    if (requests_.asked()) {
      return;
    }
    const std::uint64_t waiting = signals_of(process_, "ShdPnd:") | signals_of(process_, "SigPnd:");
    for (const int number : held_back) {
      if (holds(waiting, number)) {
        hear(number);
        return;
      }
    }
  }

  // Again and again: a rank that is just being started does not hear the first one, and to be told twice does no harm.
  void tell() {
    if (requests_.asked() && killed_by_ == 0 && holds(signals_of(process_, "SigCgt:"), SIGUSR1)) {
      kill(process_, SIGUSR1);
    }
  }

  SignalScope signals_;
  StopRequests requests_;
  pid_t process_ = -1;
  int killed_by_ = 0;
};

}  // namespace

int run_mpirun(const std::vector<std::string>& command) {
  return MpirunProcess(command).run();
}

std::vector<std::string> options_for_daemons(const std::vector<std::string>& daemon,
                                             const EnvironmentLookup& environment) {
  if (!environment("SLURM_JOB_ID") || environment("OMPI_MCA_orte_launch_agent")) {
    return {};
  }
  std::string agent;
  for (const std::string& word : daemon) {
    if (word.find(' ') != std::string::npos) {
      return {};  // Open MPI cuts it at spaces
    }
    agent += word + " ";
  }
  return {"--mca", "orte_launch_agent", agent + "orted"};
}

void become_deaf_daemon(const std::vector<std::string>& command) {
  require(!command.empty(), "no daemon of Open MPI is named: this command is for mpirun alone");
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  execvp(command.front().c_str(), words_for_exec(command).data());
  fail("cannot run Open MPI's daemon {}: {}", command.front(), strerror(errno));
}

}  // namespace orthant
