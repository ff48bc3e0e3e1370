#include "apps/cost/collectives.h"

#include <algorithm>
#include <cmath>

namespace orthant::cost {
namespace {

double rounds_of(int size) {
  return std::ceil(std::log2(static_cast<double>(size)));
}

double ring_latency(const Group& group) {
  return group.nodes() <= 1 ? group.near.latency : group.far.latency;
}

// One round of rings in which every rank sends `bytes` on. Between nodes there is a ring for each rank of a node: it
// leaves the node by that rank's link, and passes all others on its way through.
double ring_round(const Group& group, double bytes) {
  if (group.nodes() <= 1) {
    return group.near.latency + bytes / group.near.bandwidth;
  }
  const double outside = group.far.latency + bytes / group.inner / group.far.bandwidth;
  const double through = bytes * (group.inner - 1) / group.inner;
  return group.inner == 1 ? outside : std::max(outside, group.near.latency + through / group.near.bandwidth);
}

// Half of an all-reduce: size - 1 rounds, each with a part of the bytes.
double ring_half(const Group& group, double bytes) {
  return group.size <= 1 ? 0 : (group.size - 1) * ring_round(group, bytes / group.size);
}

// Partners at distance size/2, size/4, ...: those beyond the node first, with the most bytes.
double halving(const Group& group, double bytes) {
  double seconds = 0, part = bytes / 2;
  for (int distance = group.size / 2; distance >= 1; distance /= 2, part /= 2) {
    const Link& link = distance >= group.inner ? group.far : group.near;
    seconds += link.latency + part / link.bandwidth;
  }
  return seconds;
}

Group inside(const Group& group) {
  return {group.inner, group.inner, group.near, group.near};
}
Group across(const Group& group) {
  return {group.nodes(), 1, group.far, group.far};
}

double hierarchical_half(const Group& group, double bytes) {
  return ring_half(inside(group), bytes) + ring_half(across(group), bytes / group.inner);
}

double half(const Group& group, double bytes) {
  if (group.nodes() <= 1 || group.inner == 1) {
    return ring_half(group, bytes);
  }
  return std::min(ring_half(group, bytes), hierarchical_half(group, bytes));
}

}  // namespace

Group group_of(const Machine& machine, const Spans& spans) {
  const LinkClass& near = machine.links.front();
  const LinkClass& far = machine.links.back();
  const bool alone = machine.links.size() == 1;
  Group group{1,
              1,
              {near.bandwidth * machine.factors.links, near.latency, near.reduces, near.sums, near.exchanges},
              {far.bandwidth * (alone ? machine.factors.links : machine.factors.network), far.latency, far.reduces,
               far.sums, far.exchanges}};
  for (int i = 0; i < spans.count; ++i) {
    const auto [size, stride] = spans.of[static_cast<std::size_t>(i)];
    const int node = near.ranks <= 0 ? size * stride : near.ranks;
    int inner = std::clamp(node / stride, 1, size);
    while (size % inner != 0) {
      --inner;  // an uneven last node: as many as all nodes have
    }
    group.size *= size;
    group.inner *= inner;
  }
  return group;
}

Group group_of(const Machine& machine, int size, int stride) {
  Spans spans;
  spans.add(size, stride);
  return group_of(machine, spans);
}

double all_reduce(Algorithm algorithm, const Group& group, double bytes) {
  if (group.size <= 1) {
    return 0;
  }
  switch (algorithm) {
    case Algorithm::ring: return 2 * ring_half(group, bytes);
    case Algorithm::halving_doubling: return 2 * halving(group, bytes);
    case Algorithm::double_tree:
      // Each of two trees carries half of the bytes up and down, in a pipeline: a rank sends and receives all of them
      // once in each direction.
      return 2 * (rounds_of(group.size) - 1) * ring_latency(group) + 2 * ring_round(group, bytes);
    case Algorithm::hierarchical: return 2 * hierarchical_half(group, bytes);
    case Algorithm::in_network: {
      // Up to the switches and down from them at the same time.
      const double inner = group.inner > 1 ? 2 * group.near.latency + bytes / group.near.bandwidth : 0;
      const double outer = group.nodes() > 1 ? 2 * group.far.latency + bytes / group.inner / group.far.bandwidth : 0;
      return inner + outer;
    }
  }
  return 0;
}

double all_reduce(const Group& as_gathered, double bytes) {
  Group group = as_gathered;
  group.near.bandwidth *= group.near.sums;
  group.far.bandwidth *= group.far.sums;
  double best = std::min(all_reduce(Algorithm::ring, group, bytes), all_reduce(Algorithm::double_tree, group, bytes));
  if (group.nodes() > 1 && group.inner > 1) {
    best = std::min(best, all_reduce(Algorithm::hierarchical, group, bytes));
  }
  if (group.near.reduces && (group.nodes() == 1 || group.far.reduces)) {
    best = std::min(best, all_reduce(Algorithm::in_network, group, bytes));
  }
  return best;
}

double reduce_scatter(const Group& group, double bytes) {
  return half(group, bytes);
}
double all_gather(const Group& group, double bytes) {
  return half(group, bytes);
}

double grid_all_reduce(int rows, int columns, bool torus, const Link& link, double bytes) {
  const auto line = [&](int size, double of) {
    const double hops = torus || size < 3 ? 1 : size - 1;  // what wraps around passes all others
    return size <= 1 ? 0 : (size - 1) * (hops * link.latency + of / size / link.bandwidth);
  };
  return 2 * (line(columns, bytes) + line(rows, bytes / columns));
}

double all_to_all(const Group& group, double bytes, double busiest) {
  if (group.size <= 1) {
    return 0;
  }
  const double part = bytes * busiest / group.size;
  const double inside_seconds =
      (group.inner - 1) * (group.near.latency + part / (group.near.bandwidth * group.near.exchanges));
  const int outside_peers = group.size - group.inner;
  const double outside_seconds =
      outside_peers * (group.far.latency + part / (group.far.bandwidth * group.far.exchanges));
  return std::max(inside_seconds, outside_seconds);
}

double all_to_all_two_level(const Group& group, double bytes, double busiest, double far_part) {
  if (group.nodes() <= 1 || group.inner == 1) {
    return all_to_all(group, bytes, busiest);
  }
  return all_to_all(inside(group), bytes, busiest) + all_to_all(across(group), bytes * far_part, busiest);
}

double send(const Group& neighbours, double bytes) {
  if (neighbours.size <= 1) {
    return 0;
  }
  const Link& link = neighbours.inner > 1 && neighbours.nodes() == 1 ? neighbours.near : neighbours.far;
  return link.latency + bytes / link.bandwidth;
}

}  // namespace orthant::cost
