#include "parallel/launch/supervisor.h"

#include <orthant/error.h>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "parallel/launch/rank_process.h"

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

// Blocks the signals of interest, reads them from a descriptor, and puts everything back.
class SignalScope {
 public:
  SignalScope() {
    sigemptyset(&set_);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) {
      sigaddset(&set_, number);
    }
    sigprocmask(SIG_BLOCK, &set_, &previous_);
    previous_pipe_ = ::signal(SIGPIPE, SIG_IGN);
    descriptor_ = Descriptor(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor_.is_open()) {
      fail("cannot listen for signals: {}", strerror(errno));
    }
  }
  ~SignalScope() {
    ::signal(SIGPIPE, previous_pipe_);
    sigprocmask(SIG_SETMASK, &previous_, nullptr);
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  int descriptor() const { return descriptor_.get(); }
  const sigset_t& previous_mask() const { return previous_; }
  std::optional<int> next() {
    signalfd_siginfo information{};
    if (read(descriptor_.get(), &information, sizeof(information)) != sizeof(information)) {
      return std::nullopt;
    }
    return static_cast<int>(information.ssi_signo);
  }

 private:
  sigset_t set_{};
  sigset_t previous_{};
  void (*previous_pipe_)(int) = SIG_DFL;
  Descriptor descriptor_;
};

std::vector<std::pair<std::string, std::string>> rank_environment(const LaunchPlan& plan, int index,
                                                                  const std::string& segment, int columns) {
  std::vector<std::pair<std::string, std::string>> variables = plan.environment;
  variables.emplace_back("ORTHANT_RANK", std::to_string(plan.first_rank + index));
  variables.emplace_back("ORTHANT_WORLD_SIZE", std::to_string(plan.world_size));
  variables.emplace_back("ORTHANT_LOCAL_RANK", std::to_string(plan.first_local_rank + index));
  variables.emplace_back("ORTHANT_RUN_DIR", plan.run_directory.string());
  if (!segment.empty()) {
    variables.emplace_back("ORTHANT_LOCAL_FD", segment);
  }
  if (columns > 0 && plan.first_rank + index == 0) {
    variables.emplace_back("ORTHANT_TTY", std::to_string(columns));
  }
  return variables;
}

// The launcher's environment with ours instead of what it has under the same names.
std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool stale = name == "ORTHANT_LOCAL_FD" || name == "ORTHANT_TTY" || name == "ORTHANT_SECRET_FILE";
    const bool ours = std::any_of(variables.begin(), variables.end(), [&](const auto& v) { return v.first == name; });
    if (!ours && !stale) {
      merged.emplace_back(text);
    }
  }
  for (const auto& [name, value] : variables) {
    merged.push_back(name + "=" + value);
  }
  return merged;
}

// Of now: the folder may be renamed while its files are written.
std::filesystem::path log_folder(const LaunchPlan& plan) {
  const std::filesystem::path starting = plan.run_directory / plan.starting_logs;
  std::error_code ignored;
  const bool waits = !plan.starting_logs.empty() && std::filesystem::exists(starting, ignored);
  return waits ? starting : plan.run_directory / "logs";
}

std::filesystem::path log_path(const LaunchPlan& plan, int rank) {
  return log_folder(plan) / fmt::format("rank_{}.log", rank);
}

struct Outcome {
  int code = 0;
  bool may_restart = false;
};

// One start of all ranks, to the end of the last of them.
class Round {
 public:
  Round(const LaunchPlan& plan, bool is_restart, SignalScope& signals, Console& console)
      : plan_(plan), signals_(signals), console_(console), started_(Clock::now()) {
    if (plan.make_segment) {
      segment_ = plan.make_segment(plan.world_size);
    }
    SpawnRequest request;
    request.command = is_restart ? plan.restart_command : plan.command;
    request.inherited_descriptor = segment_ ? segment_->descriptor() : -1;
    request.signal_mask = signals.previous_mask();
    const std::string segment = segment_ ? std::to_string(segment_->descriptor()) : std::string();
    try {
      for (int i = 0; i < plan.local_ranks; ++i) {
        const int rank = plan.first_rank + i;
        request.environment = merged_environment(rank_environment(plan, i, segment, console.columns()));
        RankOutput output(rank, console, log_path(plan, rank), plan.append_logs || is_restart);
        ranks_.push_back(std::make_unique<RankProcess>(rank, request, std::move(output)));
      }
    } catch (...) {
      signal_all(SIGKILL);
      throw;
    }
  }

  Outcome run() {
    while (count_running() > 0) {
      wait();
      for (const auto& rank : ranks_) {
        rank->read_output();
      }
      while (const std::optional<int> number = signals_.next()) {
        if (*number != SIGCHLD) {
          stop(*number);
        }
      }
      reap();
      escalate();
    }
    console_.end_progress();
    return conclude();
  }

 private:
  int count_running() const {
    return static_cast<int>(
        std::count_if(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->is_running(); }));
  }

  void signal_all(int number) {
    for (const auto& rank : ranks_) {
      rank->signal(number);
    }
  }

  void say(const std::string& text) { console_.error_line("launch: " + text); }

  void wait() {
    std::vector<pollfd> watched = {{signals_.descriptor(), POLLIN, 0}};
    for (const auto& rank : ranks_) {
      for (const int descriptor : {rank->output_descriptor(), rank->error_descriptor()}) {
        if (descriptor >= 0) {
          watched.push_back({descriptor, POLLIN, 0});
        }
      }
    }
    // SIGCHLD wakes us; the limit only bounds how late an escalation can be.
    const int limit = next_escalation_ ? 50 : 1000;
    poll(watched.data(), watched.size(), limit);
  }

  void stop(int number) {
    if (stop_signal_ == 0) {
      stop_signal_ = number;
      say(fmt::format("{}: the ranks finish their step and save (once more to kill them)", strsignal(number)));
      signal_all(SIGTERM);
    } else {
      killed_by_user_ = true;
      say(fmt::format("{} again: killing the ranks", strsignal(number)));
      signal_all(SIGKILL);
    }
  }

  void reap() {
    std::vector<RankProcess*> failed;
    for (const auto& rank : ranks_) {
      if (rank->reap() && rank->ending().failed()) {
        failed.push_back(rank.get());
      }
    }
    // Of ranks that ended together, one that a signal killed is the cause and one that noticed is not.
    std::stable_sort(failed.begin(), failed.end(), [](const RankProcess* a, const RankProcess* b) {
      return (a->ending().signal != 0) > (b->ending().signal != 0);
    });
    for (RankProcess* rank : failed) {
      if (segment_) {
        segment_->mark_failed(rank->rank(), fmt::format("rank {} {}", rank->rank(), rank->ending().to_string()));
      }
      if (first_failed_ == nullptr) {
        first_failed_ = rank;
        announce(*rank);
      }
      if (!we_ended_ && segment_ && segment_->first_failed() == rank->rank()) {
        first_failed_ = rank;  // it told the others before it ended, and they were faster
      }
    }
  }

  void announce(const RankProcess& rank) {
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    const int others = count_running();
    say(fmt::format("rank {} {} after {:.1f} s{}", rank.rank(), rank.ending().to_string(), seconds,
                    others > 0 ? fmt::format("; stopping the other {}", others) : std::string()));
    schedule(plan_.notice_seconds);
  }

  void schedule(double seconds) {
    next_escalation_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  void escalate() {
    if (!next_escalation_ || Clock::now() < *next_escalation_ || count_running() == 0) {
      return;
    }
    if (!we_ended_) {
      we_ended_ = true;
      signal_all(SIGTERM);
      signal_all(SIGCONT);  // a stopped one could not end otherwise
      schedule(plan_.grace_seconds);
    } else {
      say(fmt::format("{} ranks did not end within {:g} s of SIGTERM: killing them", count_running(),
                      plan_.grace_seconds));
      signal_all(SIGKILL);
      next_escalation_.reset();
    }
  }

  Outcome conclude() {
    if (killed_by_user_) {
      return {128 + stop_signal_, false};
    }
    if (first_failed_ != nullptr) {
      report();
      const int code = first_failed_->ending().exit_code();
      return {code, stop_signal_ == 0 && code != static_cast<int>(ExitCode::bad_configuration)};
    }
    const bool stopped = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r->ending().code != 0; });
    return {stopped ? static_cast<int>(ExitCode::stopped_resumable) : 0, false};
  }

  void report() {
    RankOutput& output = first_failed_->output();
    say(fmt::format("rank {} failed first: it {}", first_failed_->rank(), first_failed_->ending().to_string()));
    const int at_fault = segment_ ? segment_->first_failed() : -1;
    if (at_fault >= 0 && at_fault != first_failed_->rank()) {
      say(fmt::format("the fault is with rank {}, by what the others say: stuck, stopped or out of step", at_fault));
    }
    if (output.tail().empty()) {
      say("it printed nothing");
      return;
    }
    say(fmt::format("its last {} lines (all of them: {})", output.tail().size(),
                    log_path(plan_, first_failed_->rank()).string()));
    for (const std::string& line : output.tail()) {
      console_.error_line("  " + output.prefix() + line);
    }
  }

  const LaunchPlan& plan_;
  SignalScope& signals_;
  Console& console_;
  Clock::time_point started_;
  std::unique_ptr<RankSegment> segment_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  RankProcess* first_failed_ = nullptr;
  std::optional<Clock::time_point> next_escalation_;  // when the survivors of a failure get the next signal
  bool we_ended_ = false;                             // they got SIGTERM from us
  int stop_signal_ = 0;
  bool killed_by_user_ = false;
};

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
  require(!error, "cannot make the folder {}: {}", logs.string(), error.message());

  SignalScope signals;
  Console console(plan.output, plan.error, plan.plain_output);
  for (int restart = 0;; ++restart) {
    const Outcome outcome = Round(plan, restart > 0, signals, console).run();
    if (!outcome.may_restart || restart == plan.max_restarts) {
      return outcome.code;
    }
    console.error_line(fmt::format("launch: restart {} of {}: all ranks start again from the last checkpoint",
                                   restart + 1, plan.max_restarts));
  }
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
    for (const auto& [name, value] : rank_environment(plan, i, plan.make_segment ? "(shared memory)" : "", 0)) {
      text += " " + name + "=" + (name == "ORTHANT_SECRET" ? "(secret)" : shell_quoted(value));
    }
    text += fmt::format(" {}\n[r{}] log: {}\n", command, rank, log_path(plan, rank).string());
  }
  return text;
}

}  // namespace orthant
