// The CPU's Stream: every operation, each implemented in the file of its name (norm.cpp, attention.cpp, ...),
// the router's in router/cpu/, grouped expert products in experts/cpu/.
#pragma once

#include <orthant/ops.h>

#include <array>
#include <memory>

#include "core/device/cpu/rotary_table.h"
#include "core/device/cpu/scratch.h"

namespace orthant {

// The main stream executes at once on the calling thread. A side stream executes on a thread of its own: see
// core/device/cpu/side_stream.h, which wraps a CpuStream.
class CpuStream : public Stream {
 public:
  // threads: OpenMP threads of one operation.
  CpuStream(Device& device, int threads) : device_(device), threads_(threads) {}

  Device& device() const override;
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override;
  void synchronize() override;

  int threads() const { return threads_; }

  // Uninitialised working memory, aligned to 64 bytes, valid until the next call with the same slot (0 to 3).
  void* scratch(int slot, std::size_t bytes) { return scratch_.at(slot).get(bytes); }

  // The operations.
#include "core/device/operation_overrides.inc"

 private:
  Device& device_;
  int threads_;
  std::array<ScratchBuffer, 4> scratch_;
  RotaryTable rotary_;
};

}  // namespace orthant
