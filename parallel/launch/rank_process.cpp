#include "parallel/launch/rank_process.h"

#include <orthant/error.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace orthant {
namespace {

struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail("cannot make a pipe for a rank: {} (see ulimit -n)", strerror(errno));
  }
  Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return pipe;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

// The child's side of the fork, up to exec. Only async-signal-safe calls.
[[noreturn]] void become_rank(const SpawnRequest& request, const std::vector<char*>& arguments,
                              const std::vector<char*>& environment, pid_t launcher, int output, int error) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) {
    _exit(128 + SIGKILL);  // the launcher died before the line above
  }
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing > 0) {
    dup2(nothing, 0);
    ::close(nothing);
  }
  dup2(output, 1);
  dup2(error, 2);
  if (request.inherited_descriptor >= 0) {
    fcntl(request.inherited_descriptor, F_SETFD, 0);
  }
  for (const int number : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP}) {
    ::signal(number, SIG_DFL);
  }
  sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr);
  execvpe(arguments[0], arguments.data(), environment.data());
  const char* reason = strerror(errno);
  for (const char* part : {"cannot run ", static_cast<const char*>(arguments[0]), ": ", reason, "\n"}) {
    [[maybe_unused]] const ssize_t ignored = write(2, part, strlen(part));
  }
  _exit(127);
}

}  // namespace

bool Ending::failed() const {
  return signal != 0 || (code != 0 && code != static_cast<int>(ExitCode::stopped_resumable));
}

int Ending::exit_code() const {
  return signal != 0 ? 128 + signal : code;
}

std::string Ending::to_string() const {
  return signal != 0 ? fmt::format("was killed by signal {} ({})", signal, strsignal(signal))
                     : fmt::format("ended with code {}", code);
}

RankProcess::RankProcess(int rank, const SpawnRequest& request, RankOutput output)
    : rank_(rank), output_(std::move(output)) {
  Pipe out = make_pipe();
  Pipe error = make_pipe();
  const std::vector<char*> arguments = pointers(request.command);
  const std::vector<char*> environment = pointers(request.environment);
  const pid_t launcher = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    fail("cannot start rank {}: {} (see ulimit -u and the free memory)", rank, strerror(errno));
  }
  if (pid_ == 0) {
    become_rank(request, arguments, environment, launcher, out.write_end.get(), error.write_end.get());
  }
  setpgid(pid_, pid_);  // here too: whoever comes first, the group exists before anyone signals it
  standard_output_ = std::move(out.read_end);
  standard_error_ = std::move(error.read_end);
}

void RankProcess::signal(int number) {
  if (running_) {
    if (number == SIGTERM || number == SIGKILL) {
      sent_.insert(number);
    }
    kill(-pid_, number);
  }
}

void RankProcess::read_output() {
  drain(standard_output_, false);
  drain(standard_error_, true);
}

void RankProcess::drain(Descriptor& pipe, bool is_error) {
  std::array<char, 1 << 14> buffer;
  // A rank that writes without end must not keep the launcher from the others: a pipe's worth at a time.
  for (int round = 0; round < 8 && pipe.is_open(); ++round) {
    const ssize_t count = read(pipe.get(), buffer.data(), buffer.size());
    if (count > 0) {
      const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
      is_error ? output_.feed_error(bytes) : output_.feed_output(bytes);
    } else if (count == 0) {
      pipe.close();
    } else if (errno != EINTR) {
      return;
    }
  }
}

bool RankProcess::reap() {
  if (!running_) {
    return false;
  }
  siginfo_t information{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &information, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      information.si_pid != pid_) {
    return false;
  }
  kill(-pid_, SIGKILL);  // what it left behind; before the wait below, while the group's number is still its own
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
  ending_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  read_output();
  standard_output_.close();
  standard_error_.close();
  output_.finish();
  return true;
}

}  // namespace orthant
