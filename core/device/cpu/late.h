// The late device: the CPU, but its main streams, or its side streams, run their operations a moment after they were
// asked to, on a thread of their own. A wait that is missing between streams is then seen in the results, and not only
// on a GPU. Two kinds, as who is late cannot be overtaken: each finds the waits that are missing in one direction.
#pragma once

#include "core/device/cpu/cpu_device.h"

namespace orthant {

class LateDevice final : public CpuDevice {
 public:
  LateDevice(Late late, int threads) : CpuDevice(threads), late_(late) {}

  std::string_view name() const override { return late_ == Late::main_streams ? "late" : "late_sides"; }
  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<Stream> make_host_stream() override { return make_side_stream(); }

 private:
  const Late late_;
};

}  // namespace orthant
