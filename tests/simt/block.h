// Block: the threads of one block of a grid, on fibers, and where they wait for each other. Inside of the engine.
//
// A fiber runs threads one after another as long as they do not wait, so a kernel without barriers needs one fiber.
// Thread safety: none; everything here belongs to one OS thread.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tests/simt/engine.h"
#include "tests/simt/fiber.h"

namespace orthant::simt {

// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA'14 (SplitMix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

std::string text(const std::source_location& where);  // "file:line"

class Block {
 public:
  // Runs body(argument) on `threads` threads, whose place `at` follows. Rethrows the first failure of a thread,
  // after all have been given up.
  void run(int threads, Position& at, Random& random, void (*body)(const void*), const void* argument);

  // Called on a thread of the block: see engine.h.
  int barrier(const char* function, bool predicate, const std::source_location& where);
  std::uint64_t collective(Collective kind, const char* function, unsigned mask, std::uint64_t value, int source,
                           const std::source_location& where);
  [[noreturn]] void fail_here(const std::string& what) const { fail_at(running_, what); }

 private:
  static constexpr int lanes = 32;

  struct Thread {
    Fiber* fiber = nullptr;  // nullptr: not started, or returned
    std::uint64_t value = 0, result = 0;
    int source = 0;
  };
  // Lanes of one warp that wait for each other at one place.
  struct Meeting {
    Collective kind;
    const char* function;
    unsigned mask;
    std::source_location where;
    unsigned arrived;
  };
  struct Warp {
    unsigned alive = 0;  // lanes that have not returned
    std::vector<Meeting> meetings;
  };
  // As Meeting, for the block.
  struct Barrier {
    const char* function = nullptr;
    std::source_location where;
    std::vector<int> arrived;
    int predicates = 0, result = 0;
  };

  // A fiber's life: threads, one after another.
  static void fiber_entry(void* block) { static_cast<Block*>(block)->run_threads(); }
  void run_threads();
  void thread_returned(int thread);
  // Leaves the running thread until it is ready.
  void wait();
  Fiber* idle_fiber();
  // The next to run. `before`: what an error begins with where there is none.
  int take_ready(const char* before);
  void abandon();

  void release_barrier_if_all();
  void complete_if_all(int warp, std::size_t meeting);
  void exchange(int first_thread, const Meeting& meeting);
  std::string who_waits() const;
  [[noreturn]] void fail_at(int thread, const std::string& what) const;

  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
  Random* random_ = nullptr;
  Position* position_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Barrier barrier_;
  std::vector<int> ready_;  // threads that may run, in no order
  int alive_ = 0;           // threads that have not returned
  int running_ = 0;
  std::exception_ptr failure_;

  Context outside_;  // who called run
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
};

}  // namespace orthant::simt
