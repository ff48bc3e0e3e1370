// World's watchdog: calls that wait too long, the question to the other members, and who is to blame.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include <orthant/error.h>

#include "plugins/nccl/world.h"

namespace orthant::nccl {
namespace {

constexpr int ticks_between_looks_at_connections = 5;
constexpr std::chrono::seconds answer_time{1};
// Of a call that a finished rank is a member of: its own calls were done when it finished.
constexpr double seconds_after_a_member_left = 2;

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
      rendezvous_->post(from, fmt::format("!{} {} {}", rest.substr(0, blank), last.sequence, last.what));
    }
    return;
  }
  const std::lock_guard lock(mutex_);
  if (kind == '!') {  // number, sequence, what
    std::istringstream words(rest);
    std::int64_t question = 0;
    CallLog::Last last;
    if (words >> question >> last.sequence && question == question_) {
      std::getline(words >> std::ws, last.what);
      answers_[from] = last;
    }
  } else if (kind == 'A') {
    errands_.push_back([this, key = rest, from] { open_messages(key, from); });
  } else if (kind == 'O') {
    const std::size_t zero = rest.find('\0');
    ConnectionId id{};
    if (zero != std::string::npos && rest.size() == zero + 1 + id.size()) {
      std::memcpy(id.data(), rest.data() + zero + 1, id.size());
      errands_.push_back([this, key = rest.substr(0, zero), id] { accept_messages(key, id); });
    }
  }
  changed_.notify_all();
}

void World::watch() {
  for (int ticks = 0;; ++ticks) {
    {
      std::unique_lock lock(mutex_);
      if (errands_.empty()) {
        changed_.wait_for(lock, tick, [this] { return stopping_ || !errands_.empty(); });
      }
      if (stopping_) {
        break;
      }
    }
    if (!failure().empty()) {
      abort_connections();
      continue;
    }
    try {
      do_errands();
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

double World::limit_of(const Line& line) const {
  const std::lock_guard lock(mutex_);
  const bool somebody_left =
      std::any_of(line.members.begin(), line.members.end(), [this](int m) { return left_.contains(m); });
  return somebody_left ? std::min(seconds_after_a_member_left, config_.timeout_seconds) : config_.timeout_seconds;
}

void World::watch_calls() {
  for (const CallLog::Waiting& waiting : calls_.waiting()) {
    const double limit = limit_of(*waiting.call->line);
    if (waiting.seconds > limit && failure().empty()) {
      fail(blame(*waiting.call, limit));
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
  std::vector<std::shared_ptr<NcclConnection>> connections;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) {
      return;
    }
    aborted_ = true;
    connections = connections_;
  }
  for (const auto& connection : connections) {
    connection->abort();
  }
}

std::map<int, CallLog::Last> World::ask(const Line& line) {
  std::unique_lock lock(mutex_);
  answers_.clear();
  const std::string question = fmt::format("?{} {}", ++question_, line.key);
  lock.unlock();
  for (const int member : line.members) {
    if (member != rank()) {
      rendezvous_->post(member, question);
    }
  }
  lock.lock();
  changed_.wait_for(lock, answer_time, [&] { return answers_.size() + 1 == line.members.size() || stopping_; });
  return answers_;
}

std::string World::blame(const Call& call, double limit) {
  const std::map<int, CallLog::Last> answers = ask(*call.line);
  const std::string described = call.describe();
  std::vector<int> absent, silent, finished;
  for (const int member : call.line->members) {
    if (member == rank()) {
      continue;
    }
    const auto found = answers.find(member);
    const bool called = found != answers.end() && found->second.sequence >= call.sequence;
    if (called && found->second.sequence == call.sequence && found->second.what != call.what) {
      return fmt::format(
          "rank {} calls {} and rank {} calls {} as #{} of group '{}': all must make the same calls in the "
          "same order",
          rank(), call.what, member, found->second.what, call.sequence, call.line->group);
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
  if (absent.empty()) {
    return fmt::format("{} did not arrive at {} within {:g} s, and does not answer: stopped, or its machine is gone",
                       ranks_text(silent), described, limit);
  }
  return fmt::format("{} did not arrive at {} within {:g} s: stuck or busy elsewhere", ranks_text(absent), described,
                     limit);
}

}  // namespace orthant::nccl
