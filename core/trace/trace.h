// Trace: what one rank does while it is recorded, as spans of time on tracks, one track for each stream.
//
// Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. Spans of a track are nested or
// apart. Thread safety: Trace from any thread; a Track is written by one thread at a time, that of its stream, and may
// be read from another.
#pragma once

#include <orthant/device.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace orthant {

enum class SpanKind {
  step,        // an optimizer step
  phase,       // a part of it: data, forward pass, optimizer; or of what comes between steps: validation, save
  compute,     // an operation of the stream
  collective,  // a call of a group: what it waits and what it moves
  transfer,    // between host and device
  host,        // work of a plugin on the host
  wait         // for another stream
};
const char* name_of(SpanKind kind);

// What a span tells beside its time; -1: nothing.
struct SpanFacts {
  std::int64_t step = -1;      // of a step, counted from 1
  std::int64_t rows = -1;      // of an operation's first tensor
  std::int64_t useful = -1;    // of the rows that are packed for experts, those that hold a choice
  std::int64_t bytes = -1;     // of all its tensors, or what a collective is given
  std::int64_t flops = -1;     // of a matrix product
  std::int64_t group = -1;     // of a collective: the number of the group, the same on all ranks ...
  std::int64_t first = -1;     // ... the first of its members, by world rank: a number is shared by groups apart ...
  std::int64_t sequence = -1;  // ... the call's number in the group, or between two ranks of it ...
  std::int64_t from = -1;      // ... and of a message the world ranks
  std::int64_t to = -1;
  std::int64_t of_track = -1;  // of a wait: for whose work
  std::int64_t late = -1;      // of a collective, once ranks are joined: the world rank that came last ...
  std::int64_t met = -1;       // ... and when, ns
};

struct Span {
  std::string name = {};
  SpanKind kind = SpanKind::compute;
  std::int64_t begin = 0, end = 0;  // ns
  SpanFacts facts = {};
};

std::int64_t monotonic_ns();

class Track {
 public:
  Track(int number, std::string name) : number_(number), name_(std::move(name)) {}

  int number() const { return number_; }
  const std::string& name() const { return name_; }
  void open(Span span);      // begins now
  void add(Span span);       // one that has ended
  void close();              // the span opened last
  std::vector<Span> take();  // those that have ended, in the order of their ends; they are forgotten

 private:
  const int number_;
  const std::string name_;
  std::mutex mutex_;
  std::vector<Span> open_, done_;
};

struct TracedGroup {
  std::string name;
  std::vector<int> members;  // world ranks
};

class Trace {
 public:
  // nvtx: spans are NVTX ranges as well, from now on, recorded or not (nvtx.h).
  Trace(int rank, bool nvtx) : rank_(rank), nvtx_(nvtx) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  int rank() const { return rank_; }
  bool nvtx() const { return nvtx_; }
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void record(bool on) { recording_.store(on, std::memory_order_relaxed); }

  // Lives as long as the trace. The first one is the main stream's.
  Track& add_track(const std::string& name);
  std::size_t tracks() const;
  Track& track(std::size_t i);
  // `number`: the same for the group on all ranks.
  void add_group(std::int64_t number, TracedGroup group);
  std::map<std::int64_t, TracedGroup> groups() const;

  // The calling thread is the one that works for the main stream: what it waits for, the stream waits for.
  void main_stream_is_this_thread() { main_thread_ = std::this_thread::get_id(); }
  // The main stream's track on that thread, while it is recorded; elsewhere null.
  Track* track_here();

 private:
  const int rank_;
  const bool nvtx_;
  std::atomic<bool> recording_ = false;
  mutable std::mutex mutex_;
  std::deque<Track> tracks_;
  std::map<std::int64_t, TracedGroup> groups_;
  std::thread::id main_thread_;
};

}  // namespace orthant
