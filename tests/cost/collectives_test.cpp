// Collectives against rounds of single messages. A round lasts as long as its slowest link: all messages that one rank
// sends by one class of links go one after the other.
#include "apps/cost/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "tests/cost/shapes.h"

namespace orthant::cost_test {
namespace {

using cost::Algorithm;
using cost::Group;

struct Message {
  int from = 0, to = 0;
  double bytes = 0;
};

// Seconds of one round. `own_latency`: each message waits for its own latency, where a rank has one for each of its
// peers.
double round_seconds(const Group& group, const std::vector<Message>& messages, bool own_latency = false) {
  std::map<std::pair<int, bool>, double> sent;  // by rank and class, s
  for (const Message& message : messages) {
    const bool far = message.from / group.inner != message.to / group.inner;
    const cost::Link& link = far ? group.far : group.near;
    double& busy = sent[{message.from, far}];
    busy += message.bytes / link.bandwidth + (own_latency || busy == 0 ? link.latency : 0);
  }
  double longest = 0;
  for (const auto& [link, seconds] : sent) {
    longest = std::max(longest, seconds);
  }
  return longest;
}

Group group(int size, int inner) {
  return {size, inner, {100e9, 2e-6, false}, {10e9, 5e-6, false}};
}

// One ring for each rank of a node, which carries a part of the bytes. Ring r comes into a node at rank r + 1 and
// leaves it by rank r.
double ring_half(const Group& of, double bytes) {
  const int nodes = of.nodes();
  const int rings = nodes > 1 ? of.inner : 1;
  double seconds = 0;
  for (int round = 0; round < of.size - 1; ++round) {
    std::vector<Message> messages;
    for (int ring = 0; ring < rings; ++ring) {
      std::vector<int> order;
      for (int node = 0; node < nodes; ++node) {
        for (int i = 1; i <= of.inner; ++i) {
          order.push_back(node * of.inner + (ring + i) % of.inner);
        }
      }
      for (int i = 0; i < of.size; ++i) {
        messages.push_back({order[i], order[(i + 1) % of.size], bytes / of.size / rings});
      }
    }
    seconds += round_seconds(of, messages);
  }
  return seconds;
}

TEST(Collectives, RingsTakeTheRoundsOfTheirMessages) {
  for (const auto& [size, inner] : {std::pair(2, 2), {8, 8}, {16, 8}, {8, 1}, {64, 8}, {12, 4}}) {
    for (const double bytes : {1e3, 1e6, 1e9}) {
      const Group of = group(size, inner);
      const double half = ring_half(of, bytes);
      EXPECT_NEAR(all_reduce(Algorithm::ring, of, bytes), 2 * half, 1e-9 * half) << size << " " << inner;
      if (of.nodes() == 1 || inner == 1) {
        EXPECT_NEAR(cost::all_gather(of, bytes), half, 1e-9 * half);
        EXPECT_NEAR(cost::reduce_scatter(of, bytes), half, 1e-9 * half);
      }
    }
  }
}

TEST(Collectives, HalvingAndDoublingExchangesWithPartners) {
  for (const auto& [size, inner] : {std::pair(8, 8), {16, 8}, {32, 4}, {4, 1}}) {
    const Group of = group(size, inner);
    const double bytes = 3e8;
    double seconds = 0, part = bytes / 2;
    for (int distance = size / 2; distance >= 1; distance /= 2, part /= 2) {
      std::vector<Message> messages;
      for (int rank = 0; rank < size; ++rank) {
        messages.push_back({rank, rank ^ distance, part});
      }
      seconds += 2 * round_seconds(of, messages);  // halving on the way in, doubling on the way out
    }
    EXPECT_NEAR(all_reduce(Algorithm::halving_doubling, of, bytes), seconds, 1e-9 * seconds);
  }
}

TEST(Collectives, HierarchiesReduceInsideFirst) {
  const Group of = group(32, 8);
  const double bytes = 4e8;
  const double inside = ring_half(group(8, 8), bytes);
  Group rail = group(4, 1);
  const double across = ring_half(rail, bytes / 8);
  EXPECT_NEAR(all_reduce(Algorithm::hierarchical, of, bytes), 2 * (inside + across), 1e-12);
}

// Two complementary binary trees in a pipeline of `chunks`: a rank is inside one tree and a leaf of the other, so that
// in each round it sends one chunk of each.
double double_tree(const Group& of, double bytes, int chunks) {
  const int depth = static_cast<int>(std::ceil(std::log2(of.size)));
  return 2 * (chunks + depth - 1) * (of.near.latency + bytes / chunks / of.near.bandwidth);
}

TEST(Collectives, DoubleTreesCarryAllBytesTwiceAndWaitForTheirDepth) {
  const Group of = group(16, 16);
  const double small = 64, large = 1e10;
  EXPECT_NEAR(all_reduce(Algorithm::double_tree, of, small), double_tree(of, small, 1), 2e-8);
  // As many chunks as balance what a chunk waits against what the pipeline takes to fill.
  EXPECT_NEAR(all_reduce(Algorithm::double_tree, of, large) / double_tree(of, large, 200), 1, 0.03);
  // Trees win where messages are many and small, rings where bytes count.
  const Group many = group(512, 8);
  EXPECT_LT(all_reduce(Algorithm::double_tree, many, 1e4), all_reduce(Algorithm::ring, many, 1e4) / 10);
  EXPECT_GT(all_reduce(Algorithm::double_tree, group(4, 4), 1e10), all_reduce(Algorithm::ring, group(4, 4), 1e10));
  EXPECT_EQ(cost::all_reduce(many, 1e4), all_reduce(Algorithm::double_tree, many, 1e4));
}

TEST(Collectives, SwitchesThatReduceSendOnce) {
  Group of = group(8, 8);
  of.near.reduces = true;
  const double bytes = 1e9;
  EXPECT_NEAR(cost::all_reduce(of, bytes), bytes / of.near.bandwidth + 2 * of.near.latency, 1e-12);
  of.near.reduces = false;
  EXPECT_GT(cost::all_reduce(of, bytes), 1.7 * bytes / of.near.bandwidth);
}

// Rings along rows, then along columns. A message over several hops waits for each of them; its bytes follow in a
// stream.
double line_half(int size, bool torus, const cost::Link& link, double bytes) {
  double seconds = 0;
  for (int round = 0; round < size - 1; ++round) {
    double longest = 0;
    for (int rank = 0; rank < size; ++rank) {
      const int hops = rank + 1 < size || torus ? 1 : size - 1;
      longest = std::max(longest, hops * link.latency + bytes / size / link.bandwidth);
    }
    seconds += longest;
  }
  return seconds;
}

TEST(Collectives, GridsReduceAlongRowsAndColumns) {
  const cost::Link link{50e9, 1e-6, false};
  for (const bool torus : {true, false}) {
    const double half = line_half(8, torus, link, 1e8) + line_half(4, torus, link, 1e8 / 8);
    EXPECT_NEAR(cost::grid_all_reduce(4, 8, torus, link, 1e8), 2 * half, 1e-12);
  }
  EXPECT_GT(cost::grid_all_reduce(4, 8, false, link, 1e3), 2 * cost::grid_all_reduce(4, 8, true, link, 1e3));
}

TEST(Collectives, AllToAllSendsToEveryOther) {
  for (const auto& [size, inner] : {std::pair(8, 8), {32, 8}, {4, 1}}) {
    const Group of = group(size, inner);
    const double bytes = 1e8;
    std::vector<Message> one_level;
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (to != from) {
          one_level.push_back({from, to, bytes / size});
        }
      }
    }
    EXPECT_NEAR(cost::all_to_all(of, bytes), round_seconds(of, one_level, true), 1e-9);
    // Two levels: to the rank of this node that has the receiver's place, then from node to node.
    std::vector<Message> inside, across;
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        const int place = from / inner * inner + to % inner;
        if (to / inner == from / inner && place != from) {
          inside.push_back({from, place, bytes / inner});
        }
        if (to % inner == from % inner && to != from) {
          across.push_back({from, to, bytes / of.nodes()});
        }
      }
    }
    const double two = round_seconds(of, inside, true) + round_seconds(of, across, true);
    EXPECT_NEAR(cost::all_to_all_two_level(of, bytes), two, 1e-9);
  }
  // Many small messages are better sent in two levels.
  const Group many = group(256, 8);
  EXPECT_LT(cost::all_to_all_two_level(many, 1e4), cost::all_to_all(many, 1e4) / 4);
  EXPECT_NEAR(cost::all_to_all(many, 1e9, 1.5) / cost::all_to_all(many, 1e9), 1.5, 0.02);
}

TEST(Collectives, GroupsThatShareANodeShareItsNetwork) {
  const cost::Machine machine = round_machine();
  const Group whole = cost::group_of(machine, 16, 1), strided = cost::group_of(machine, 16, 8);
  EXPECT_EQ(whole.inner, 8);
  EXPECT_EQ(whole.nodes(), 2);
  EXPECT_EQ(strided.inner, 1);
  EXPECT_EQ(cost::group_of(machine, 4, 2).nodes(), 1);
  EXPECT_EQ(cost::group_of(machine, 12, 1).inner, 6);  // an uneven last node: as many as all nodes have
  // Eight groups of one rank a node have the node's eight links between them; one group of all ranks has them alone.
  const double bytes = 1e9;
  const double one_group = all_reduce(Algorithm::ring, whole, bytes);
  const double eight_groups = all_reduce(Algorithm::ring, strided, bytes);
  EXPECT_NEAR(eight_groups / one_group, 8, 0.1);
}

TEST(Collectives, OneRankExchangesNothing) {
  const Group alone = group(1, 1);
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::double_tree, Algorithm::hierarchical}) {
    EXPECT_EQ(all_reduce(algorithm, alone, 1e9), 0);
  }
  EXPECT_EQ(cost::all_to_all(alone, 1e9), 0);
  EXPECT_EQ(cost::all_gather(alone, 1e9), 0);
}

}  // namespace
}  // namespace orthant::cost_test
