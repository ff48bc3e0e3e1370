// World's watchdog: calls that wait too long, the question to the other members, and who is to blame.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include <orthant/error.h>

#include "world.h"

namespace orthant::nccl {
namespace {

constexpr std::chrono::milliseconds tick_of_making{1};
constexpr int ticks_between_looks_at_connections = 5;
constexpr std::chrono::seconds answer_time{1};
// Of a call that a finished rank is a member of: its own calls were done when it finished.
constexpr double seconds_after_a_member_left = 2;

// Of a watchdog that looks all the time: then this process was held (suspended, frozen), mostly with all others.
constexpr std::chrono::seconds held_gap{3};

constexpr double never = 1e30;

std::chrono::steady_clock::duration seconds_as_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

void World::hear(int from, const std::string& note) {
  const std::string rest = note.empty() ? "" : note.substr(1);
  const char kind = note.empty() ? '\0' : note[0];
  if (kind == '?') {  // number, key
    const std::size_t blank = rest.find(' ');
    if (blank != std::string::npos) {
      const CallLog::Last last = calls_.last(rest.substr(blank + 1));
      rendezvous_->post(from, fmt::format("!{} {} {:g} {:g} {}", rest.substr(0, blank), last.sequence, longest_wait(),
                                          seconds_since_beat(), last.what));
    }
    return;
  }
  const std::lock_guard lock(mutex_);
  if (kind == '!') {  // number, sequence, seconds in a call, seconds since a beat, what
    std::istringstream words(rest);
    std::int64_t question = 0;
    Answer answer;
    if (words >> question >> answer.last.sequence >> answer.waits >> answer.since_beat && question == question_) {
      std::getline(words >> std::ws, answer.last.what);
      answers_[from] = answer;
    }
  } else if (kind == 'A') {
    errands_.push_back([this, key = rest, from] { open_messages(key, from); });
  } else if (kind == 'O') {
    const std::size_t zero = rest.find('\0');
    ConnectionId id{};
    if (zero != std::string::npos && rest.size() == zero + 1 + id.size()) {
      std::memcpy(id.data(), rest.data() + zero + 1, id.size());
      errands_.push_back([this, key = rest.substr(0, zero), from, id] { accept_messages(key, from, id); });
    }
  }
  changed_.notify_all();
}

void World::watch() {
  Clock::time_point last_look = Clock::now();
  for (int ticks = 0;; ++ticks) {
    {
      std::unique_lock lock(mutex_);
      if (errands_.empty()) {
        changed_.wait_for(lock, making_.empty() ? tick : tick_of_making,
                          [this] { return stopping_ || !errands_.empty(); });
      }
      if (stopping_) {
        break;
      }
    }
    if (!failure().empty()) {
      abort_connections();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (now - std::exchange(last_look, now) > held_gap) {
      patient_until_ = now + seconds_as_duration(config_.timeout_seconds);  // that time counts for no call
    }
    try {
      do_errands();
      advance_connections();
      watch_calls();
      if (ticks % ticks_between_looks_at_connections == 0) {
        watch_connections();
      }
    } catch (const Error& error) {
      fail_unless_told(fmt::format("rank {} failed: {}", rank(), error.what()));
    }
  }
  if (!failure().empty()) {
    abort_connections();
  }
}

void World::do_errands() {
  std::vector<std::function<void()>> errands;
  {
    const std::lock_guard lock(mutex_);
    errands.swap(errands_);
  }
  for (const auto& errand : errands) {
    errand();
  }
}

// Before the watchdog asks events, as NcclConnection::ready() is the first to choose the GPU for its thread.
void World::advance_connections() {
  std::erase_if(making_, [this](Making& making) { return advance(making); });
}

bool World::advance(Making& making) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      return true;  // a peer has asked for it, and no message will come
    }
  }
  if (!failure().empty()) {
    return false;  // one rank is named, and the watchdog aborts next
  }
  try {
    if (!making.connection->ready()) {
      if (std::chrono::duration<double>(Clock::now() - making.begin).count() > config_.timeout_seconds) {
        fail(blame(making));
      }
      return false;
    }
    if (!making.warm) {
      making.warm = true;
      making.connection->warm_up(making.carries);
      return false;
    }
  } catch (const Error& error) {
    fail_unless_told(fmt::format("rank {} failed: {}: {}", rank(), making.what, error.what()));
    return false;
  }
  const std::lock_guard lock(mutex_);
  made_[making.key] = making.connection;
  changed_.notify_all();
  return true;
}

double World::limit_of(const Line& line) const {
  const std::lock_guard lock(mutex_);
  const bool somebody_left =
      std::any_of(line.members.begin(), line.members.end(), [this](int m) { return left_.contains(m); });
  return somebody_left ? std::min(seconds_after_a_member_left, config_.timeout_seconds) : config_.timeout_seconds;
}

double World::longest_wait() {
  double longest = 0;
  for (const CallLog::Waiting& waiting : calls_.waiting()) {
    longest = std::max(longest, waiting.seconds);
  }
  return longest;
}

void World::beat() noexcept {
  last_beat_.store(Clock::now().time_since_epoch().count());
}

double World::seconds_since_beat() const {
  const Clock::duration::rep last = last_beat_.load();
  return last == 0 ? never
                   : std::chrono::duration<double>(Clock::now() - Clock::time_point(Clock::duration(last))).count();
}

void World::watch_calls() {
  if (Clock::now() < patient_until_) {
    return;
  }
  for (const CallLog::Waiting& waiting : calls_.waiting()) {
    const double limit = limit_of(*waiting.call->line);
    if (waiting.seconds > limit && failure().empty()) {
      const std::map<int, Answer> answers = ask(*waiting.call->line);
      const bool busy = seconds_since_beat() < limit ||
                        std::any_of(answers.begin(), answers.end(),
                                    [limit](const auto& answer) { return answer.second.since_beat < limit; });
      if (busy) {  // with files, and well: the time counts from its last beat
        patient_until_ = Clock::now() + std::min<Clock::duration>(answer_time, seconds_as_duration(limit / 4));
        return;
      }
      fail(blame(*waiting.call, limit, answers));
    }
  }
}

void World::watch_connections() {
  std::vector<std::shared_ptr<NcclConnection>> connections;
  {
    const std::lock_guard lock(mutex_);
    connections = connections_;
  }
  for (const auto& connection : connections) {
    connection->ready();
  }
}

void World::abort_connections() {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) {
      return;
    }
    aborted_ = true;
  }
  api_->abort_all();
}

// All ranks, not only those of the line: who is missing may itself be held up by a rank that is no member.
std::map<int, World::Answer> World::ask(const Line& line) {
  std::unique_lock lock(mutex_);
  answers_.clear();
  const std::string question = fmt::format("?{} {}", ++question_, line.key);
  std::vector<int> others;
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && !left_.contains(other)) {
      others.push_back(other);
    }
  }
  lock.unlock();
  for (const int other : others) {
    rendezvous_->post(other, question);
  }
  lock.lock();
  changed_.wait_for(lock, answer_time, [&] { return answers_.size() >= others.size() || stopping_; });
  return answers_;
}

// Every rank takes its part in a connection by its watchdog, which answers.
std::string World::blame(const Making& making) {
  const std::map<int, Answer> answers = ask(making.line);
  std::vector<int> others, silent;
  for (const int member : making.line.members) {
    if (member != rank()) {
      (answers.contains(member) ? others : silent).push_back(member);
    }
  }
  if (!silent.empty()) {
    return fmt::format("{} did not connect for {} within {:g} s, and does not answer: stopped, or its machine is gone",
                       ranks_text(silent), making.what, config_.timeout_seconds);
  }
  return fmt::format(
      "NCCL did not connect rank {} with {} for {} within {:g} s, though they answer: the network between them is "
      "stuck; NCCL_DEBUG=INFO says more",
      rank(), ranks_text(others), making.what, config_.timeout_seconds);
}

std::string World::blame(const Call& call, double limit, const std::map<int, Answer>& answers) {
  const std::string described = call.describe();
  std::vector<int> absent, silent, finished;
  for (const int member : call.line->members) {
    if (member == rank()) {
      continue;
    }
    const auto found = answers.find(member);
    const bool called = found != answers.end() && found->second.last.sequence >= call.sequence;
    if (called && found->second.last.sequence == call.sequence && found->second.last.what != call.what) {
      return fmt::format(
          "rank {} calls {} and rank {} calls {} as #{} of group '{}': all must make the same calls in the "
          "same order",
          rank(), call.what, member, found->second.last.what, call.sequence, call.line->group);
    }
    const std::lock_guard lock(mutex_);
    if (!called) {
      (left_.contains(member) ? finished : found == answers.end() ? silent : absent).push_back(member);
    }
  }
  if (!finished.empty()) {
    return fmt::format("{} finished its work without a call to {}", ranks_text(finished), described);
  }
  if (absent.empty() && silent.empty()) {
    return fmt::format(
        "{} did not complete within {:g} s though every member has called it: a GPU or the network between "
        "them is stuck, or work queued before it is",
        described, limit);
  }
  const std::string late = fmt::format("did not arrive at {} within {:g} s", described, limit);
  if (!silent.empty()) {
    return fmt::format("{} {}, and does not answer: stopped, or its machine is gone", ranks_text(silent), late);
  }
  // An absent member that waits in another call is held up as this rank is.
  const auto waits = [&](int other) {
    const auto found = answers.find(other);
    return found != answers.end() && found->second.waits > limit / 2;
  };
  std::vector<int> free, elsewhere;
  std::copy_if(absent.begin(), absent.end(), std::back_inserter(free), [&](int member) { return !waits(member); });
  if (!free.empty()) {
    return fmt::format("{} {}: stuck or busy elsewhere", ranks_text(free), late);
  }
  for (int other = 0; other < size(); ++other) {
    const std::lock_guard lock(mutex_);
    if (other != rank() && !left_.contains(other) && !answers.contains(other)) {
      silent.push_back(other);
    } else if (other != rank() && !left_.contains(other) && !waits(other)) {
      elsewhere.push_back(other);
    }
  }
  if (!silent.empty()) {
    return fmt::format("{} does not answer, and holds others up: stopped, or its machine is gone; {} {}",
                       ranks_text(silent), ranks_text(absent), late);
  }
  if (!elsewhere.empty()) {
    return fmt::format("{} makes no call that others wait for: stuck or busy elsewhere; {} {}", ranks_text(elsewhere),
                       ranks_text(absent), late);
  }
  return fmt::format("{} {}: it waits elsewhere, as all ranks do", ranks_text(absent), late);
}

}  // namespace orthant::nccl
