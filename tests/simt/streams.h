// Streams, events and graphs of the stand-in runtime.
//
// At once: what a stream is given has happened when the call returns (the default). Deferred: it waits in the stream's
// queue until somebody waits for it, and then runs in an order that the seed chooses, among all that streams and events
// allow. A missing event between two streams then gives wrong values, or with AddressSanitizer a use after free. Thread
// safety: all calls, from any thread. Deferred work runs on the thread that waits, one operation at a time.
#pragma once

#include <cstdint>
#include <functional>

struct CUstream_st;

namespace orthant::simt {

// Whether what `stream` is given now may run in place: it is null, or nothing is deferred and it is not recorded.
bool runs_at_once(const CUstream_st* stream);

// Runs, queues or records an operation. what: the same for operations that differ only in their arguments.
// bind: makes the operation of other parameters, where it is a kernel's.
using Bind = std::function<std::function<void()>(void* const* parameters)>;
void give(CUstream_st* stream, const void* what, std::function<void()> operation, Bind bind = nullptr);

// From now on: deferred in the order of the seed, or with seed 0 at once (what is queued runs first).
void defer(std::uint64_t seed);

}  // namespace orthant::simt

// The same for who loads a device library with this in it.
extern "C" __attribute__((visibility("default"))) void orthant_simt_defer(std::uint64_t seed);
