#include "core/run/run_numbers.h"

#include <vector>

#include "core/arch/links.h"
#include "parallel/host_collectives.h"

namespace orthant {

BytesByKind largest_peak(const Device& device, Group& world, Stream& stream) {
  const MemoryUse use = device.memory();
  std::vector<std::int64_t> most = {use.peak_bytes};
  all_reduce_values(most, ReduceOp::max, world, stream);
  std::vector<std::int64_t> whose = {use.peak_bytes == most[0] ? world.rank() : world.size()};
  all_reduce_values(whose, ReduceOp::min, world, stream);
  std::vector<std::int64_t> bytes;
  for (MemoryKind kind : all_memory_kinds) {
    bytes.push_back(whose[0] == world.rank() ? use.peak_kinds[kind] : 0);
  }
  all_reduce_values(bytes, ReduceOp::sum, world, stream);
  BytesByKind kinds;
  for (MemoryKind kind : all_memory_kinds) {
    kinds[kind] = bytes[static_cast<std::size_t>(kind)];
  }
  return kinds;
}

std::optional<double> model_flops_utilization(const Settings& settings, std::int64_t tokens, double seconds,
                                              int ranks) {
  if (settings.run.peak_tflops <= 0 || seconds <= 0) {
    return {};
  }
  const double needed = training_flops(links_of(settings)) * static_cast<double>(tokens);
  return needed / (seconds * static_cast<double>(ranks) * settings.run.peak_tflops * 1e12);
}

}  // namespace orthant
