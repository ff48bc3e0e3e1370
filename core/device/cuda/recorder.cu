#include "core/device/cuda/recorder.h"

namespace orthant::cuda {

bool Command::same_kind(const Command& other) const {
  const auto same = [](const dim3& a, const dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; };
  if (what != other.what || kernel() != other.kernel()) {
    return false;
  }
  return kernel() ? same(blocks, other.blocks) && same(threads, other.threads) && shared == other.shared
                  : bytes == other.bytes;
}

}  // namespace orthant::cuda
