#include "apps/check/child.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <orthant/error.h>

namespace orthant {
namespace {

constexpr char returned = 'r', threw = 't';

void write_all(int to, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = write(to, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) {
      return;  // the parent sees a short answer
    }
    done += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
}

std::string read_all(int from) {
  std::string text;
  std::array<char, 4096> chunk;
  for (;;) {
    const ssize_t n = read(from, chunk.data(), chunk.size());
    if (n > 0) {
      text.append(chunk.data(), static_cast<std::size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      return text;
    }
  }
}

[[noreturn]] void run_child(const std::function<std::string()>& body, int to, int seconds) {
  // Whatever handlers the parent has, these signals end the child.
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGALRM, SIGFPE, SIGILL}) {
    signal(number, SIG_DFL);
  }
  alarm(static_cast<unsigned>(seconds));
  std::string answer;
  try {
    answer = returned + body();
  } catch (const std::exception& failure) {
    answer = threw + std::string(failure.what());
  } catch (...) {
    answer = threw + std::string("something that is not a std::exception was thrown");
  }
  write_all(to, answer);
  _exit(0);
}

}  // namespace

std::string in_child(const std::function<std::string()>& body, int seconds) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    fail("cannot make a pipe: {}", std::strerror(errno));
  }
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) {
    fail("cannot start a process: {}", std::strerror(errno));
  }
  if (child == 0) {
    close(ends[0]);
    run_child(body, ends[1], seconds);
  }
  close(ends[1]);
  const std::string answer = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  require(!(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM), "it did not end within {} seconds", seconds);
  require(!WIFSIGNALED(status), "it crashed: {}", strsignal(WTERMSIG(status)));
  require(!answer.empty(), "its process ended without a word (exit code {})", WEXITSTATUS(status));
  require(answer[0] == returned, "{}", answer.substr(1));
  return answer.substr(1);
}

}  // namespace orthant
