// FallbackStream: the base of the Stream of a device that does not have every operation yet. A device begins with
// memory and order; each operation that it has not overridden runs on the host, and gives the CPU's bits.
// docs/guides/devices.md shows what a device writes, and in which order.
//
// How: the operation is host() work of the stream itself, so that the device's order holds. There its tensors are
// HostViews of the device (copies, where the host does not see the memory), and a CPU stream computes on them. Outputs
// are written back. Sums are f64 there as everywhere: a device without f64 leaves those operations to the host.
//
// together() of such a stream must stay as it is, as nothing in it may wait for the device.
//
// The host waits for such an operation, as it does for those of plugins (operation.h): what is refused is thrown where
// it was asked for. Errors: those of the CPU's operation, and Error for a tensor of the host's memory. Thread safety:
// as ops.h.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include <orthant/abi/operations.h>
#include <orthant/ops.h>

namespace orthant {

class FallbackStream : public Stream {
 public:
  // threads: of one operation on the host, at least 1. `device` outlives the stream.
  FallbackStream(Device& device, int threads);
  ~FallbackStream() override;
  Device& device() const override { return device_; }

#define ORTHANT_OPERATION(name, parameters, arguments) void name parameters override;
#include <orthant/operations.inc>

 private:
  Device& device_;
  std::unique_ptr<Device> processor_;
  std::unique_ptr<Stream> host_;
};

// The operations that S, a class derived from FallbackStream, leaves to the host, separated by ", ": for
// Device::kernels.
template <class S>
std::string operations_on_host() {
  static_assert(std::is_base_of_v<FallbackStream, S>);
  std::string names;
  const auto add = [&names]<class Owner, class Function>(const char* name, Function Owner::*) {
    if constexpr (std::is_same_v<Owner, FallbackStream>) {
      names += names.empty() ? name : std::string(", ") + name;
    }
  };
#define ORTHANT_OPERATION(name, parameters, arguments) add(#name, &S::name);
#include <orthant/operations.inc>
  return names;
}

}  // namespace orthant
