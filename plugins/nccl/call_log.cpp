#include "call_log.h"

#include <algorithm>

namespace orthant::nccl {

std::string Call::describe() const {
  return fmt::format("{} #{} ({} bytes) of group '{}'", name, sequence, bytes, line->group);
}

std::shared_ptr<const Call> CallLog::begin(const std::shared_ptr<const Line>& line, std::string name, std::string what,
                                           std::int64_t bytes, Stream& s) {
  auto call = std::make_shared<Call>();
  call->name = std::move(name);
  call->what = std::move(what);
  call->bytes = bytes;
  call->line = line;
  const std::shared_ptr<Event> before = s.record();
  const std::lock_guard lock(mutex_);
  Last& last = last_[line->key];
  call->sequence = ++last.sequence;
  last.what = call->what;
  pending_[&s].push_back({call, before, nullptr, std::nullopt});
  return call;
}

void CallLog::given(const std::shared_ptr<const Call>& call, Stream& s) {
  const std::shared_ptr<Event> after = s.record();
  const std::lock_guard lock(mutex_);
  std::deque<Pending>& calls = pending_[&s];
  const auto found = std::find_if(calls.rbegin(), calls.rend(), [&](const Pending& p) { return p.call == call; });
  if (found != calls.rend()) {
    found->after = after;
  }
}

void CallLog::forget(const std::shared_ptr<const Call>& call) {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, calls] : pending_) {
    std::erase_if(calls, [&](const Pending& pending) { return pending.call == call; });
  }
}

void CallLog::forget_all_of(const Line& line) {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, calls] : pending_) {
    std::erase_if(calls, [&](const Pending& pending) { return pending.call->line->key == line.key; });
  }
}

void CallLog::drop_done(std::deque<Pending>& calls) {
  while (!calls.empty() && calls.front().after != nullptr && calls.front().after->ready()) {
    calls.pop_front();
  }
}

std::vector<CallLog::Waiting> CallLog::waiting() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  std::vector<Waiting> found;
  for (auto& [stream, calls] : pending_) {
    drop_done(calls);
    if (!calls.empty() && calls.front().before->ready()) {
      Pending& first = calls.front();
      first.reached = first.reached.value_or(now);
      found.push_back({first.call, std::chrono::duration<double>(now - *first.reached).count()});
    }
  }
  std::erase_if(pending_, [](const auto& entry) { return entry.second.empty(); });
  return found;
}

bool CallLog::done(const Line& line) {
  waiting();
  const std::lock_guard lock(mutex_);
  return std::all_of(pending_.begin(), pending_.end(), [&](const auto& entry) {
    return std::none_of(entry.second.begin(), entry.second.end(),
                        [&](const Pending& pending) { return pending.call->line->key == line.key; });
  });
}

CallLog::Last CallLog::last(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = last_.find(key);
  return found == last_.end() ? Last{} : found->second;
}

}  // namespace orthant::nccl
