#include "core/trace/trace.h"

#include <time.h>

#include <utility>

namespace orthant {

const char* name_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::step: return "step";
    case SpanKind::phase: return "phase";
    case SpanKind::compute: return "compute";
    case SpanKind::collective: return "collective";
    case SpanKind::transfer: return "transfer";
    case SpanKind::host: return "host";
    case SpanKind::wait: return "wait";
  }
  return "?";
}

std::int64_t monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void Track::open(Span span) {
  const std::lock_guard lock(mutex_);
  open_.push_back(std::move(span));
  open_.back().begin = monotonic_ns();
}

void Track::close() {
  const std::int64_t now = monotonic_ns();
  const std::lock_guard lock(mutex_);
  if (!open_.empty()) {
    open_.back().end = now;
    done_.push_back(std::move(open_.back()));
    open_.pop_back();
  }
}

void Track::add(Span span) {
  const std::lock_guard lock(mutex_);
  done_.push_back(std::move(span));
}

std::vector<Span> Track::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

Track& Trace::add_track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return tracks_.emplace_back(static_cast<int>(tracks_.size()), name);
}

std::size_t Trace::tracks() const {
  const std::lock_guard lock(mutex_);
  return tracks_.size();
}

Track& Trace::track(std::size_t i) {
  const std::lock_guard lock(mutex_);
  return tracks_.at(i);
}

void Trace::add_group(std::int64_t number, TracedGroup group) {
  const std::lock_guard lock(mutex_);
  groups_[number] = std::move(group);
}

std::map<std::int64_t, TracedGroup> Trace::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

Track* Trace::track_here() {
  return recording() && std::this_thread::get_id() == main_thread_ ? &track(0) : nullptr;
}

}  // namespace orthant
