#include "parallel/launch/round.h"

#include <orthant/error.h>

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "parallel/launch/rank_variables.h"
#include "parallel/process_state.h"

namespace orthant {
namespace {

constexpr double show_seconds = 1;  // ranks that give up together do so within that, mostly

std::string words_of_state(char state) {
  switch (state) {
    case 'T': return "is stopped (state T)";
    case 't': return "is stopped by a debugger (state t)";
    case 'D': return "waits for a disk or the network in the kernel (state D)";
    case 'R': return "computes something else than the others (state R)";
    case 'S': return "waits for something else than the others (state S)";
    default: return "did not go on with the others";
  }
}

// Of a rank that the kernel ended at the limit of processor time, which the ranks have from this process: by SIGXCPU at
// the soft one, by SIGKILL at the hard one.
std::optional<KillAccount> account_of_processor_limit(const Ending& ending) {
  rlimit limit{};
  if ((ending.signal != SIGXCPU && ending.signal != SIGKILL) || getrlimit(RLIMIT_CPU, &limit) != 0) {
    return std::nullopt;
  }
  const rlim_t seconds = ending.signal == SIGXCPU ? limit.rlim_cur : limit.rlim_max;
  if (seconds == RLIM_INFINITY || ending.processor_seconds < static_cast<double>(seconds) - 0.5) {
    return std::nullopt;
  }
  return KillAccount{true,
                     fmt::format("it has used {:.1f} s of processor time, and its limit is {} s (ulimit -t): raise "
                                 "or lift the limit, and start again with --resume auto",
                                 ending.processor_seconds, seconds)};
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

Round::Round(const LaunchPlan& plan, bool is_restart, SignalScope& signals, Console& console)
    : plan_(plan),
      signals_(signals),
      console_(console),
      started_(Clock::now()),
      kills_before_(count_memory_kills()),
      segment_(plan.make_segment ? plan.make_segment(plan.world_size) : nullptr),
      lines_(console, [this] { return segment_ ? segment_->failure() : std::nullopt; }) {
  SpawnRequest request;
  request.command = is_restart ? plan.restart_command : plan.command;
  request.inherited_descriptor = segment_ ? segment_->descriptor() : -1;
  request.signal_mask = signals.mask_for_ranks(plan.ranks_ask_for_signals);
  const std::string segment = segment_ ? std::to_string(segment_->descriptor()) : std::string();
  try {
    for (int i = 0; i < plan.local_ranks; ++i) {
      const int rank = plan.first_rank + i;
      request.environment = merged_environment(rank_variables(plan, i, segment, console.columns()));
      RankOutput output(rank, lines_, log_path(plan, rank), plan.append_logs || is_restart);
      ranks_.push_back(std::make_unique<RankProcess>(rank, request, std::move(output)));
    }
  } catch (...) {
    signal_all(SIGKILL);
    throw;
  }
}

Outcome Round::run() {
  while (count_running() > 0) {
    wait();
    for (const auto& rank : ranks_) {
      rank->read_output();
    }
    while (const std::optional<int> number = signals_.next()) {
      take_signal(*number);
    }
    note_failure();
    reap();
    escalate();
    if (next_show_ && Clock::now() >= *next_show_) {
      show_held();
    }
    console_.flush();
  }
  show_held();
  console_.end_progress();
  return conclude();
}

int Round::count_running() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->is_running(); }));
}

RankProcess* Round::find(int rank) const {
  const auto found =
      std::find_if(ranks_.begin(), ranks_.end(), [rank](const auto& other) { return other->rank() == rank; });
  return found == ranks_.end() ? nullptr : found->get();
}

void Round::signal_all(int number) {
  for (const auto& rank : ranks_) {
    rank->signal(number);
  }
}

void Round::wait() {
  std::vector<pollfd> watched = {{signals_.descriptor(), POLLIN, 0}};
  for (const auto& rank : ranks_) {
    for (const int descriptor : {rank->output_descriptor(), rank->error_descriptor()}) {
      if (descriptor >= 0) {
        watched.push_back({descriptor, POLLIN, 0});
      }
    }
  }
  console_.watch(watched);
  // SIGCHLD wakes us; the limit only bounds how late an escalation can be.
  poll(watched.data(), watched.size(), next_escalation_ || next_show_ ? 50 : 1000);
}

void Round::take_signal(int number) {
  if (number == SIGTSTP) {
    pause();
    return;
  }
  if (number == SIGCHLD) {
    return;
  }
  const bool asked = requests_.asked();
  switch (requests_.hear(number)) {
    case StopRequests::Meaning::nothing: return;
    case StopRequests::Meaning::kill:
      killed_by_ = number;
      console_.say(fmt::format("{} again: killing the ranks", strsignal(number)));
      signal_all(SIGKILL);
      return;
    case StopRequests::Meaning::stop: break;
  }
  console_.say(stop_text(number));
  if (!asked) {
    signal_all(SIGTERM);
  }
}

// Ctrl-Z: without the launcher nobody would read what the ranks print, and they would stop one by one.
void Round::pause() {
  console_.say("stopped, and the ranks as well; fg or SIGCONT goes on");
  signal_all(SIGSTOP);
  const Clock::time_point begin = Clock::now();
  kill(getpid(), SIGSTOP);
  if (next_escalation_) {
    *next_escalation_ += Clock::now() - begin;
  }
  if (segment_) {
    segment_->excuse_silence();
  }
  signal_all(SIGCONT);
}

void Round::reap() {
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
    if (first_ended_ == nullptr && killed_by_ == 0) {
      first_ended_ = rank;
      note_failure();
      lines_.hold();
      announce();
    }
  }
}

// What the ranks found, and how it stands with the one at fault before we wake or end it.
void Round::note_failure() {
  if (named_ || !segment_) {
    return;
  }
  named_ = segment_->failure();
  if (!named_) {
    return;
  }
  next_show_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(show_seconds));
  const RankProcess* rank = find(named_->rank);
  if (rank != nullptr && rank->is_running()) {
    named_state_ = process_state(rank->process());
  }
}

void Round::announce() {
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  const int others = count_running();
  const RankProcess* rank = named_ ? find(named_->rank) : nullptr;
  const bool runs = rank != nullptr && rank->is_running();
  rank = rank != nullptr ? rank : first_ended_;
  console_.say(fmt::format("rank {} {} after {:.1f} s{}", rank->rank(), runs ? "failed" : rank->ending().to_string(),
                           seconds, others > 0 ? fmt::format("; stopping the other {}", others - (runs ? 1 : 0)) : ""));
  schedule(plan_.notice_seconds);
}

void Round::schedule(double seconds) {
  next_escalation_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void Round::escalate() {
  if (!next_escalation_ || Clock::now() < *next_escalation_ || count_running() == 0) {
    return;
  }
  if (!we_ended_) {
    we_ended_ = true;
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped one could not end otherwise
    schedule(plan_.grace_seconds);
  } else {
    const int running = count_running();
    console_.say(fmt::format("{} rank{} did not end within {:g} s of SIGTERM: killing {}", running,
                             running == 1 ? "" : "s", plan_.grace_seconds, running == 1 ? "it" : "them"));
    signal_all(SIGKILL);
    next_escalation_.reset();
  }
}

void Round::show_held() {
  next_show_.reset();
  lines_.show_held();
}

Outcome Round::conclude() {
  if (killed_by_ != 0) {
    return {128 + killed_by_, false, {}};
  }
  if (first_ended_ == nullptr) {
    const bool stopped =
        std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->ending().code != 0; });
    return {stopped ? static_cast<int>(ExitCode::stopped_resumable) : 0, false, {}};
  }
  const Verdict found = verdict();
  report(found);
  const bool may_restart = !requests_.asked() && found.code != static_cast<int>(ExitCode::bad_configuration);
  return {found.code, may_restart, failed_round(found)};
}

Round::Verdict Round::verdict() const {
  RankProcess* rank = named_ ? find(named_->rank) : nullptr;
  rank = rank != nullptr ? rank : first_ended_;
  const Ending& ending = rank->ending();
  const bool waited = is_stopped(named_state_) || named_state_ == 'D';
  Verdict found{.rank = rank, .held_up = false, .how = {}, .code = 0, .kill = {}};
  found.held_up =
      named_state_ != 0 && rank->was_told_to_end() && (waited || rank->was_ended_by_us() || !ending.failed());
  found.how = found.held_up ? words_of_state(named_state_) : ending.to_string();
  found.code = found.held_up || !ending.failed() ? static_cast<int>(ExitCode::failure) : ending.exit_code();
  if (rank->was_ended_by_us()) {
    return found;
  }
  found.kill = account_of_processor_limit(ending);
  if (!found.kill && ending.signal == SIGKILL) {
    found.kill = account_of_kill(kills_before_, count_memory_kills());
  }
  return found;
}

void Round::report(const Verdict& verdict) {
  const RankOutput& output = verdict.rank->output();
  // Of a world with other launchers, the first may be one of theirs.
  const bool first = plan_.local_ranks == plan_.world_size || (named_ && find(named_->rank) != nullptr);
  console_.say(fmt::format("rank {} failed{}: it {}", verdict.rank->rank(), first ? " first" : "", verdict.how));
  const bool told =
      named_ && !output.tail().empty() && output.tail().back().find(first_line(named_->why)) != std::string::npos;
  if (named_ && !told && !named_->why.ends_with(verdict.how)) {
    console_.say(named_->why);
  }
  if (verdict.kill) {
    console_.say(verdict.kill->text);
  }
  if (!verdict.held_up && verdict.rank->ending().signal == SIGBUS) {
    console_.say("memory that it had mapped failed or could not be had (shared memory: is /dev/shm full?)");
  }
  if (output.tail().empty()) {
    console_.say("it printed nothing");
    return;
  }
  const std::size_t lines = output.tail().size();
  console_.say(fmt::format("its last {} (all of them: {})", lines == 1 ? "line" : fmt::format("{} lines", lines),
                           log_path(plan_, verdict.rank->rank()).string()));
  for (const std::string& line : output.tail()) {
    console_.error_line("  " + rank_prefix({verdict.rank->rank()}) + line);
  }
}

FailedRound Round::failed_round(const Verdict& verdict) const {
  FailedRound failed;
  const Ending& ending = verdict.rank->ending();
  const auto& tail = verdict.rank->output().tail();
  const std::string kind = verdict.held_up      ? "held up"
                           : ending.signal != 0 ? fmt::format("signal {}", ending.signal)
                                                : fmt::format("code {}", ending.code);
  if (!verdict.kill || verdict.kill->at_a_limit) {
    failed.way = way_of(kind, named_ ? named_->why : tail.empty() ? "" : tail.back());
  }
  for (const auto& rank : ranks_) {
    failed.step = std::max(failed.step, segment_ ? segment_->step(rank->rank()) : -1);
  }
  return failed;
}

}  // namespace orthant
