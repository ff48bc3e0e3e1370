#include "tests/simt/block.h"

#include <orthant/error.h>

#include <bit>
#include <numeric>
#include <string_view>
#include <utility>

namespace orthant::simt {
namespace {

// Thrown in waiting threads once the block has failed: it empties their stacks.
struct Abandoned {};

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name());
}

bool has(unsigned mask, int lane) {
  return (mask >> lane & 1u) != 0;
}

}  // namespace

std::string text(const std::source_location& where) {
  return fmt::format("{}:{}", where.file_name(), where.line());
}

void Block::run(int threads, Position& at, Random& random, void (*body)(const void*), const void* argument) {
  body_ = body;
  argument_ = argument;
  random_ = &random;
  position_ = &at;
  threads_.assign(threads, {});
  warps_.resize((threads + lanes - 1) / lanes);
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const int here = std::min(lanes, threads - static_cast<int>(w) * lanes);
    warps_[w].alive = here == lanes ? ~0u : (1u << here) - 1;
    warps_[w].meetings.clear();
  }
  barrier_.arrived.clear();
  barrier_.predicates = 0;
  ready_.resize(threads);
  std::iota(ready_.begin(), ready_.end(), 0);
  alive_ = threads;
  failure_ = nullptr;

  running_ = take_ready("no thread can go on: ");
  switch_context(outside_, idle_fiber()->context());
  if (failure_) {
    abandon();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

// The threads that wait are resumed once more, to throw.
void Block::abandon() {
  for (std::size_t t = 0; t < threads_.size(); ++t) {
    if (threads_[t].fiber != nullptr) {
      running_ = static_cast<int>(t);
      switch_context(outside_, threads_[t].fiber->context());
    }
  }
}

// Runs the thread `running_`, which its waker has chosen, then others that have not started.
void Block::run_threads() {
  Fiber* const self = fibers_.back().get();  // this fiber's first switch follows its making
  for (;;) {
    const int thread = running_;
    int next = -1;
    threads_[thread].fiber = self;
    try {
      position_->thread = {static_cast<unsigned>(thread), 0, 0};
      body_(argument_);
      thread_returned(thread);
      next = alive_ > 0 ? take_ready("which returned, no other can go on: ") : -1;
    } catch (const Abandoned&) {
    } catch (...) {
      failure_ = std::current_exception();
    }
    threads_[thread].fiber = nullptr;
    if (failure_ || alive_ == 0) {
      idle_.push_back(self);
      switch_context(self->context(), outside_);
      continue;
    }
    running_ = next;
    if (Fiber* const waiting = threads_[running_].fiber) {
      idle_.push_back(self);
      switch_context(self->context(), waiting->context());
    }
  }
}

void Block::thread_returned(int thread) {
  --alive_;
  const int w = thread / lanes;
  Warp& warp = warps_[w];
  warp.alive &= ~(1u << thread % lanes);
  for (std::size_t m = warp.meetings.size(); m-- > 0;) {
    complete_if_all(w, m);
  }
  release_barrier_if_all();
}

void Block::wait() {
  const int thread = running_;
  running_ = take_ready("no thread can go on: ");
  if (running_ == thread) {
    return;
  }
  Fiber* const started = threads_[running_].fiber;
  Fiber* const next = started != nullptr ? started : idle_fiber();
  switch_context(threads_[thread].fiber->context(), next->context());
  if (failure_) {
    throw Abandoned{};
  }
  position_->thread = {static_cast<unsigned>(thread), 0, 0};
}

Fiber* Block::idle_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(&fiber_entry, this, fibers_.size()));
    return fibers_.back().get();
  }
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

int Block::take_ready(const char* before) {
  if (ready_.empty()) {
    fail_here(before + who_waits());
  }
  const auto at = static_cast<std::size_t>(((random_->next() >> 32) * ready_.size()) >> 32);
  const int thread = ready_[at];
  ready_[at] = ready_.back();
  ready_.pop_back();
  return thread;
}

int Block::barrier(const char* function, bool predicate, const std::source_location& where) {
  if (barrier_.arrived.empty()) {
    barrier_.function = function;
    barrier_.where = where;
  } else if (!same_place(barrier_.where, where)) {
    fail_here(
        fmt::format("{} ({}) while other threads, such as {}, wait in {} ({}): all threads of a block that have "
                    "not returned must come to the same barrier",
                    function, text(where), barrier_.arrived.front(), barrier_.function, text(barrier_.where)));
  }
  barrier_.arrived.push_back(running_);
  barrier_.predicates += predicate ? 1 : 0;
  release_barrier_if_all();
  wait();
  return barrier_.result;
}

void Block::release_barrier_if_all() {
  if (alive_ > 0 && static_cast<int>(barrier_.arrived.size()) == alive_) {
    ready_.insert(ready_.end(), barrier_.arrived.begin(), barrier_.arrived.end());
    barrier_.arrived.clear();
    barrier_.result = std::exchange(barrier_.predicates, 0);
  }
}

std::uint64_t Block::collective(Collective kind, const char* function, unsigned mask, std::uint64_t value, int source,
                                const std::source_location& where) {
  const int thread = running_, lane = thread % lanes, w = thread / lanes;
  Warp& warp = warps_[w];
  if (!has(mask, lane)) {
    fail_here(fmt::format("{} ({}): lane {} is not in its own mask {:#010x}", function, text(where), lane, mask));
  }
  Thread& self = threads_[thread];
  self.value = value;
  self.source = source;
  std::size_t found = warp.meetings.size();
  for (std::size_t m = 0; m < warp.meetings.size(); ++m) {
    const Meeting& other = warp.meetings[m];
    if (other.kind == kind && other.mask == mask && same_place(other.where, where)) {
      found = m;
    } else if (has(other.mask, lane) && (other.arrived & mask) != 0) {
      // Each waits for the other, in different places.
      fail_here(
          fmt::format("{} with mask {:#010x} ({}) in lane {}, while lane {} of that mask waits in {} with mask "
                      "{:#010x} ({}): all lanes of a mask must come to the same call",
                      function, mask, text(where), lane, std::countr_zero(other.arrived & mask), other.function,
                      other.mask, text(other.where)));
    }
  }
  if (found == warp.meetings.size()) {
    warp.meetings.push_back({kind, function, mask, where, 0});
  }
  warp.meetings[found].arrived |= 1u << lane;
  complete_if_all(w, found);
  wait();
  return self.result;
}

void Block::complete_if_all(int warp, std::size_t meeting) {
  Warp& of = warps_[warp];
  const Meeting done = of.meetings[meeting];
  if ((done.mask & of.alive) != done.arrived) {
    return;
  }
  of.meetings.erase(of.meetings.begin() + static_cast<std::ptrdiff_t>(meeting));
  exchange(warp * lanes, done);
  for (int lane = 0; lane < lanes; ++lane) {
    if (has(done.arrived, lane)) {
      ready_.push_back(warp * lanes + lane);
    }
  }
}

void Block::exchange(int first_thread, const Meeting& meeting) {
  Thread* const of = threads_.data() + first_thread;  // by lane
  unsigned ballot = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    ballot |= has(meeting.arrived, lane) && of[lane].value != 0 ? 1u << lane : 0u;
  }
  for (int lane = 0; lane < lanes; ++lane) {
    if (!has(meeting.arrived, lane)) {
      continue;
    }
    switch (meeting.kind) {
      case Collective::barrier: break;
      case Collective::ballot: of[lane].result = ballot; break;
      case Collective::match:
        of[lane].result = 0;
        for (int other = 0; other < lanes; ++other) {
          of[lane].result |= has(meeting.arrived, other) && of[other].value == of[lane].value ? 1u << other : 0u;
        }
        break;
      case Collective::greatest:
        of[lane].result = 0;
        for (int other = 0; other < lanes; ++other) {
          of[lane].result = std::max(of[lane].result, has(meeting.arrived, other) ? of[other].value : 0);
        }
        break;
      case Collective::shuffle:
        if (!has(meeting.arrived, of[lane].source)) {
          fail_at(first_thread + lane,
                  fmt::format("{} ({}) reads lane {}, which {} {:#010x}", meeting.function, text(meeting.where),
                              of[lane].source,
                              has(meeting.mask, of[lane].source) ? "has returned; the mask is" : "is not in the mask",
                              meeting.mask));
        }
        of[lane].result = of[of[lane].source].value;
        break;
    }
  }
}

std::string Block::who_waits() const {
  std::string found;
  if (!barrier_.arrived.empty()) {
    found = fmt::format("{} of {} threads that have not returned, such as {}, wait in {} ({})", barrier_.arrived.size(),
                        alive_, barrier_.arrived.front(), barrier_.function, text(barrier_.where));
  }
  int shown = 0;
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    for (const Meeting& meeting : warps_[w].meetings) {
      if (++shown <= 4) {
        found +=
            fmt::format("{}lanes {:#010x} of warp {} wait in {} with mask {:#010x} ({})", found.empty() ? "" : "; ",
                        meeting.arrived, w, meeting.function, meeting.mask, text(meeting.where));
      }
    }
  }
  return found;
}

void Block::fail_at(int thread, const std::string& what) const {
  fail("block ({}, {}, {}), thread {}: {}", position_->block.x, position_->block.y, position_->block.z, thread, what);
}

}  // namespace orthant::simt
