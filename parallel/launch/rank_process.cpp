#include "parallel/launch/rank_process.h"

#include <orthant/error.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

namespace orthant {
namespace {

constexpr int cannot_run = 127;  // as shells say it

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

// As execvp finds it; "" where no folder of PATH has it.
std::string path_of(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    return program;
  }
  const char* variable = std::getenv("PATH");
  std::string folders = variable == nullptr ? "/bin:/usr/bin" : variable;
  for (std::size_t at = 0; at <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    const std::string folder = end == at ? "." : folders.substr(at, end - at);
    const std::string path = folder + "/" + program;
    struct stat status {};
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0) {
      return path;
    }
    at = end + 1;
  }
  return "";
}

// The child's side of the fork, up to exec. Only async-signal-safe calls, since another thread of the launcher may have
// held a lock of the C library. refusal: where the error of an exec that fails goes, as a number.
[[noreturn]] void become_rank(const SpawnRequest& request, const std::string& path, const std::vector<char*>& arguments,
                              const std::vector<char*>& environment, pid_t launcher, int output, int error,
                              int refusal) {
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
  execve(path.c_str(), arguments.data(), environment.data());
  const int reason = errno;
  [[maybe_unused]] const ssize_t ignored = write(refusal, &reason, sizeof reason);
  _exit(cannot_run);
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
  Pipe refusal = make_pipe();  // closed by an exec
  program_ = request.command.front();
  const std::string path = path_of(program_);
  const std::vector<char*> arguments = pointers(request.command);
  const std::vector<char*> environment = pointers(request.environment);
  const pid_t launcher = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    fail("cannot start rank {}: {} (see ulimit -u and the free memory)", rank, strerror(errno));
  }
  if (pid_ == 0) {
    become_rank(request, path, arguments, environment, launcher, out.write_end.get(), error.write_end.get(),
                refusal.write_end.get());
  }
  setpgid(pid_, pid_);  // here too: whoever comes first, the group exists before anyone signals it
  standard_output_ = std::move(out.read_end);
  standard_error_ = std::move(error.read_end);
  refusal_ = std::move(refusal.read_end);
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
  rusage used{};
  while (wait4(pid_, &status, 0, &used) < 0 && errno == EINTR) {
  }
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  ending_.processor_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
  running_ = false;
  ending_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  read_output();
  int reason = 0;
  if (ending_.code == cannot_run && read(refusal_.get(), &reason, sizeof reason) == sizeof reason) {
    output_.feed_error(fmt::format("cannot run {}: {}\n", program_, std::generic_category().message(reason)));
  }
  refusal_.close();
  standard_output_.close();
  standard_error_.close();
  output_.finish();
  return true;
}

}  // namespace orthant
