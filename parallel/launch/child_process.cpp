#include "parallel/launch/child_process.h"

#include <orthant/error.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/output.h"
#include "parallel/launch/descriptor.h"

namespace orthant {

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& log) {
  Descriptor output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (output.get() < 0) {
    const int error = errno;
    fail("cannot write '{}': {}", log.string(), std::generic_category().message(error));
  }
  std::vector<char*> words;
  for (const std::string& word : command) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    const int error = errno;
    fail("cannot start {}: {}", command.front(), std::generic_category().message(error));
  }
  if (pid_ == 0) {
    setpgid(0, 0);  // a Ctrl-C is for the one who started it, and may tell it
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(128 + SIGKILL);
    }
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (nothing >= 0) {
      dup2(nothing, 0);
    }
    dup2(output.get(), 1);
    dup2(output.get(), 2);
    restore_signals_for_exec();
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv(words.front(), words.data());
    _exit(127);
  }
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), ending_(other.ending_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(ending_, other.ending_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    signal(SIGKILL);
    reap(0);
  }
}

bool ChildProcess::is_running() {
  if (pid_ > 0) {
    reap(WNOHANG);
  }
  return pid_ > 0;
}

const Ending& ChildProcess::wait() {
  if (pid_ > 0) {
    reap(0);
  }
  return ending_;
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) {
    kill(pid_, number);
  }
}

void ChildProcess::reap(int options) {
  int status = 0;
  pid_t ended = 0;
  do {
    ended = waitpid(pid_, &status, options);
  } while (ended < 0 && errno == EINTR);
  if (ended == pid_) {
    ending_ = WIFSIGNALED(status) ? Ending{0, WTERMSIG(status)} : Ending{WEXITSTATUS(status), 0};
    pid_ = -1;
  }
}

}  // namespace orthant
