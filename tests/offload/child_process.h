// A process of its own for a test that changes what the system permits to a process.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace orthant::offload_test {

// What `act` returns, or the message of what it throws, in a child; "ended by signal N" where it dies.
inline std::string in_child(const std::function<std::string()>& act) {
  int ends[2];
  if (pipe(ends) != 0) {
    return "no pipe";
  }
  const pid_t child = fork();
  if (child == 0) {
    std::string said;
    try {
      said = act();
    } catch (const std::exception& thrown) {
      said = thrown.what();
    }
    _exit(write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  char part[512];
  for (ssize_t count = 1; (count = read(ends[0], part, sizeof part)) > 0;) {
    said.append(part, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? "ended by signal " + std::to_string(WTERMSIG(status)) : said;
}

// A system call that fails with `error`: always, or where its argument has one of `bits`.
struct Refusal {
  int call = 0;
  int error = 0;
  int argument = 0;
  unsigned bits = 0;
};

// From here on, for this process and the threads that it starts. False where the system has no such filters.
inline bool refuse_calls(const std::vector<Refusal>& refusals) {
  std::vector<sock_filter> filter;
  for (const Refusal& refusal : refusals) {
    const bool always = refusal.bits == 0;
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(refusal.call), 0,
                              static_cast<unsigned char>(always ? 1 : 3)));
    if (!always) {
      const auto place = static_cast<unsigned>(offsetof(seccomp_data, args) + 8 * refusal.argument);
      filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place));
      filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, refusal.bits, 0, 1));
    }
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(refusal.error)));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace orthant::offload_test
