#include "parallel/launch/supervisor.h"

#include <orthant/error.h>

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>

#include "parallel/launch/console.h"
#include "parallel/launch/rank_variables.h"
#include "parallel/launch/restart_policy.h"
#include "parallel/launch/round.h"
#include "parallel/launch/signal_scope.h"

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// Waits for room on the console or for a signal; false when neither came in time.
bool wait_for_news(const Console& console, const SignalScope& signals, Clock::duration time) {
  std::vector<pollfd> watched = {{signals.descriptor(), POLLIN, 0}};
  console.watch(watched);
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return poll(watched.data(), watched.size(), static_cast<int>(std::max<std::int64_t>(limit, 0))) > 0;
}

// A request to stop that came while no rank runs.
std::optional<int> stop_request(SignalScope& signals) {
  while (const std::optional<int> number = signals.next()) {
    if (*number == SIGTSTP) {
      kill(getpid(), SIGSTOP);
    } else if (*number != SIGCHLD) {
      return number;
    }
  }
  return std::nullopt;
}

std::int64_t newest_checkpoint(const LaunchPlan& plan) {
  return plan.newest_checkpoint ? plan.newest_checkpoint() : -1;
}

int stopped_without_ranks(const LaunchPlan& plan, Console& console, int number) {
  const bool resumable = newest_checkpoint(plan) >= 0;
  console.say(fmt::format("{}: no rank is started any more{}", strsignal(number),
                          resumable ? "; the newest checkpoint is there to go on from" : ""));
  return resumable ? static_cast<int>(ExitCode::stopped_resumable) : 128 + number;
}

int run_rounds(const LaunchPlan& plan, SignalScope& signals, Console& console) {
  RestartPolicy policy({plan.max_restarts, plan.first_wait_seconds, plan.longest_wait_seconds},
                       newest_checkpoint(plan));
  for (bool is_restart = false;; is_restart = true) {
    if (const std::optional<int> number = stop_request(signals)) {
      return stopped_without_ranks(plan, console, *number);
    }
    std::error_code ignored;  // a log that cannot be opened says more
    std::filesystem::create_directories(log_path(plan, plan.first_rank).parent_path(), ignored);
    Outcome outcome = Round(plan, is_restart, signals, console).run();
    if (!outcome.may_restart) {
      return outcome.code;
    }
    outcome.failed.checkpoint = newest_checkpoint(plan);
    const RestartPolicy::Decision next = policy.after(outcome.failed);
    if (next.number == 0) {
      if (!next.why_not.empty()) {
        console.say(next.why_not);
      }
      return outcome.code;
    }
    console.say(fmt::format("restart {} of {}, in {:g} s: all ranks start again from the last checkpoint", next.number,
                            plan.max_restarts, next.wait_seconds));
    const Clock::time_point start = Clock::now() + seconds(next.wait_seconds);
    while (Clock::now() < start) {
      wait_for_news(console, signals, start - Clock::now());
      console.flush();
      if (const std::optional<int> number = stop_request(signals)) {
        return stopped_without_ranks(plan, console, *number);
      }
    }
  }
}

// What still waits on the console is written while somebody reads it, within bounds.
void say_last_words(const LaunchPlan& plan, SignalScope& signals, Console& console) {
  const Clock::time_point limit = Clock::now() + seconds(5 * plan.last_words_seconds);
  std::vector<pollfd> writable;
  for (console.flush(); console.waiting() > 0; console.flush()) {
    writable.clear();
    console.watch(writable);
    if (writable.empty() || !wait_for_news(console, signals, seconds(plan.last_words_seconds)) ||
        Clock::now() > limit || stop_request(signals)) {
      return;
    }
  }
}

}  // namespace

int supervise(const LaunchPlan& plan) {
  require(!plan.command.empty() && plan.local_ranks > 0 && plan.first_rank >= 0 &&
              plan.first_rank + plan.local_ranks <= plan.world_size,
          "a plan of ranks [{}, {}) in a world of {} cannot be started", plan.first_rank,
          plan.first_rank + plan.local_ranks, plan.world_size);
  require(plan.max_restarts == 0 || !plan.restart_command.empty(), "restarts are asked for without a command for them");
  std::error_code error;
  const std::filesystem::path logs =
      plan.run_directory / (plan.starting_logs.empty() ? std::string("logs") : plan.starting_logs);
  std::filesystem::create_directories(logs, error);
  if (error) {
    throw ConfigError(fmt::format("cannot make the folder {}: {}", logs.string(), error.message()));
  }

  SignalScope signals;
  Console console(plan.output, plan.error, plan.plain_output);
  const int code = run_rounds(plan, signals, console);
  say_last_words(plan, signals, console);
  return code;
}

std::string shell_quoted(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-+=./:,@%") == std::string::npos;
  if (plain) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

std::string describe(const LaunchPlan& plan) {
  std::string command;
  for (const std::string& word : plan.command) {
    command += (command.empty() ? "" : " ") + shell_quoted(word);
  }
  std::string text = fmt::format("run folder: {}\nranks: {} of {} on this machine\nrestarts: at most {}\n",
                                 plan.run_directory.string(), plan.local_ranks, plan.world_size, plan.max_restarts);
  for (int i = 0; i < plan.local_ranks; ++i) {
    const int rank = plan.first_rank + i;
    text += fmt::format("[r{}]", rank);
    for (const auto& [name, value] : rank_variables(plan, i, plan.make_segment ? "(shared memory)" : "", 0)) {
      text += " " + name + "=" + (name == "ORTHANT_SECRET" ? "(secret)" : shell_quoted(value));
    }
    text += fmt::format(" {}\n[r{}] log: {}\n", command, rank, log_path(plan, rank).string());
  }
  return text;
}

}  // namespace orthant
