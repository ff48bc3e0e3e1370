// What tests ask about the calls of the stand-in runtime. Thread safety: all calls, from any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace orthant::simt {

struct Counters {
  std::atomic<std::int64_t> waits = 0;       // calls that waited for the device
  std::atomic<std::int64_t> events = 0;      // made
  std::atomic<std::int64_t> recordings = 0;  // of graphs, begun
  std::atomic<std::int64_t> launches = 0;    // kernels, copies and settings of memory that streams were given
  // While true kernels are counted and not run, and memory that is allocated is not poisoned, so that large shapes cost
  // nothing. What they would have written is anything.
  std::atomic<bool> only = false;
};

// Of the process.
Counters& counters();

}  // namespace orthant::simt

// The same for who loads a device library with this in it.
extern "C" {
__attribute__((visibility("default"))) std::int64_t orthant_simt_waits();
__attribute__((visibility("default"))) std::int64_t orthant_simt_events();
__attribute__((visibility("default"))) std::int64_t orthant_simt_recordings();
__attribute__((visibility("default"))) std::int64_t orthant_simt_launches();
__attribute__((visibility("default"))) void orthant_simt_only_count(bool on);
}
