// IoEngine: how reads and writes of a file are handed to the system. Two kinds: io_uring, and a pool of threads.
//
// An engine carries out one operation at a time as it is told, and judges nothing: short ones and failures are its
// caller's (transfer_queue.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace orthant::offload {

struct IoOperation {
  enum class Kind { read, write };
  Kind kind = Kind::read;
  int file = -1;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;  // that of a write is only read
  std::int64_t bytes = 0;
  // Told once, on a thread of the engine: how many bytes are done, perhaps fewer than asked for, or minus an errno. The
  // engine does not look at the operation any more, so it may be started again from here. It throws nothing.
  std::function<void(std::int64_t result)> done;
};

// Ownership: operations and their memory are the caller's and stay until `done` is called.
// Thread safety: start from any thread, from `done` too.
class IoEngine {
 public:
  // REQUIRES: nothing is in flight.
  virtual ~IoEngine() = default;
  // Returns at once; never calls `done` itself.
  // REQUIRES: fewer operations are in flight than the depth that the engine was made for.
  virtual void start(IoOperation& operation) = 0;
  virtual const char* name() const = 0;
};

// Each thread has one operation at a time.
std::unique_ptr<IoEngine> make_thread_engine(int threads);

// Null where the system refuses (a container's filter, an old kernel, a limit) or the build has no liburing; then `why`
// says it.
std::unique_ptr<IoEngine> make_uring_engine(int depth, std::string& why);

}  // namespace orthant::offload
