// apply: an operation of a plugin's own, at once.
#include "core/device/own_operation.h"

#include "core/device/cpu/cpu_stream.h"

namespace orthant {

void CpuStream::apply(const OwnOperation& operation) {
  check_own_operation(operation);
  run_on_host(operation, [](const Tensor& t) { return t.as<std::byte>(); });
}

}  // namespace orthant
