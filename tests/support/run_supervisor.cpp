#include "tests/support/run_supervisor.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

namespace orthant::launch_test {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "orthant_launch_XXXXXX").string();
  require(mkdtemp(name.data()) != nullptr, "cannot make a temporary folder {}", name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream input(file);
  std::stringstream text;
  text << input.rdbuf();
  return text.str();
}

bool is_alive(pid_t pid) {
  // "pid (name) state ...": the name may hold spaces, but no letter follows its last parenthesis other than the state.
  const std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

double processor_seconds(pid_t pid) {
  const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string passed_over;
  for (int i = 0; i < 11; ++i) {
    fields >> passed_over;
  }
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

Running::Running(const std::filesystem::path& folder, const std::function<int()>& run) : folder_(folder) {
  pid_ = fork();
  if (pid_ == 0) {
    dup2(open((folder / "stdout").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), 1);
    dup2(open((folder / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), 2);
    int code = 99;
    try {
      code = run();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      [[maybe_unused]] const ssize_t written = write(2, text.data(), text.size());
    }
    _exit(code);
  }
}

Running::~Running() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

int Running::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

LaunchPlan shell_plan(const std::filesystem::path& folder, int ranks, const std::string& script) {
  LaunchPlan plan;
  plan.command = {"sh", "-c", script};
  plan.environment = {{"F", folder.string()}};
  plan.run_directory = folder / "run";
  plan.world_size = plan.local_ranks = ranks;
  plan.notice_seconds = 0.2;
  plan.grace_seconds = 0.3;
  plan.first_wait_seconds = 0.01;
  return plan;
}

Result run_to_end(const std::filesystem::path& folder, const LaunchPlan& plan) {
  Running running(folder, [&] { return supervise(plan); });
  const int code = running.wait();
  return {code, running.output(), running.error()};
}

}  // namespace orthant::launch_test
