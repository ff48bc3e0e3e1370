#include "parallel/local/traffic.h"

namespace orthant {

std::uint64_t ideal_bytes(const CallHeader& call, int rank, int members) {
  const auto p = static_cast<std::uint64_t>(members);
  switch (call.kind) {
    case Collective::all_reduce: return 2 * call.bytes * (p - 1) / p;
    case Collective::all_gather:  // bytes: of one block
    case Collective::reduce_scatter: return call.bytes * (p - 1);
    case Collective::broadcast:
    case Collective::reduce: return call.bytes * (p - 1) / p;  // the mean over a ring
    case Collective::gather: return rank == call.root ? 0 : call.bytes;
    case Collective::scatter: return rank == call.root ? call.bytes * (p - 1) : 0;
    case Collective::send: return call.bytes;
    case Collective::all_to_all:
    case Collective::none:
    case Collective::barrier:
    case Collective::recv: break;
  }
  return 0;
}

std::array<Traffic, collective_kinds> traffic_of(const LocalSegment& segment, int channel, int rank) {
  const auto* control = reinterpret_cast<const AreaControl*>(segment.area(channel, rank));
  std::array<Traffic, collective_kinds> found;
  for (std::size_t kind = 0; kind < collective_kinds; ++kind) {
    const TrafficCounter& counter = control->traffic[kind];
    found[kind] = {counter.calls.load(), counter.ideal_bytes.load(), counter.moved_bytes.load()};
  }
  return found;
}

}  // namespace orthant
