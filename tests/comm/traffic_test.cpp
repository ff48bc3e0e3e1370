// The counters of the local communicator beside bytes worked out by hand.
#include "parallel/local/traffic.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "parallel/local/local_communicator.h"
#include "tests/comm/neighbours.h"

namespace orthant::test::traffic_test {
namespace {

// Of all ranks together.
struct Moved {
  std::uint64_t calls = 0, ideal = 0, moved = 0;
};

// What one call on the group of four ranks adds, of kind `kind`; nothing may be counted for another kind.
Moved count(Collective kind, const std::function<void(Group&, Rig&)>& call) {
  const auto segment = LocalSegment::create(4);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto world = make_local_communicator(segment, rank, 60);
      world->split("unused", {rank});
      Rig rig;
      const auto group = world->split("counted", everyone(*world));
      call(*group, rig);
      rig.stream->synchronize();
    });
  }
  ranks.clear();
  Moved sum;
  for (int rank = 0; rank < 4; ++rank) {
    const auto traffic = traffic_of(*segment, 1, rank);
    for (std::size_t k = 0; k < collective_kinds; ++k) {
      if (k == static_cast<std::size_t>(kind)) {
        sum.calls += traffic[k].calls;
        sum.ideal += traffic[k].ideal_bytes;
        sum.moved += traffic[k].moved_bytes;
      } else {
        EXPECT_EQ(traffic[k].calls + traffic[k].ideal_bytes + traffic[k].moved_bytes, 0u) << k;
      }
    }
  }
  return sum;
}

constexpr std::uint64_t MB = 1 << 20;

TEST(Traffic, SumsOfLargeTensorsMoveWhatARingWould) {
  const Moved m = count(Collective::all_reduce, [](Group& g, Rig& rig) {
    g.all_reduce(rig.device->empty(DType::f32, {1 << 20}), ReduceOp::max, *rig.stream);
  });
  EXPECT_EQ(m.calls, 4u);
  EXPECT_EQ(m.ideal, 24 * MB);  // 2 * 3/4 of 4 MB, by each of four
  EXPECT_EQ(m.moved, 24 * MB);
}

TEST(Traffic, SumsOfSmallTensorsAreReadByEveryone) {
  const Moved m = count(Collective::all_reduce, [](Group& g, Rig& rig) {
    g.all_reduce(rig.device->empty(DType::f32, {100}), ReduceOp::max, *rig.stream);
  });
  EXPECT_EQ(m.ideal, 2400u);  // 2 * 3/4 of 400 bytes, by each of four
  EXPECT_EQ(m.moved, 4800u);  // each reads three times 400
}

TEST(Traffic, GathersAndScatters) {
  const auto block = [](Rig& rig) { return rig.device->empty(DType::u8, {1 << 20}); };
  const auto whole = [](Rig& rig) { return rig.device->empty(DType::u8, {4, 1 << 20}); };
  Moved m =
      count(Collective::all_gather, [&](Group& g, Rig& rig) { g.all_gather(whole(rig), block(rig), *rig.stream); });
  EXPECT_EQ(m.ideal, 12 * MB);  // everybody's block to three others
  EXPECT_EQ(m.moved, 12 * MB);
  m = count(Collective::reduce_scatter, [&](Group& g, Rig& rig) {
    g.reduce_scatter(rig.device->empty(DType::i32, {1 << 18}), rig.device->empty(DType::i32, {4, 1 << 18}),
                     ReduceOp::sum, *rig.stream);
  });
  EXPECT_EQ(m.ideal, 12 * MB);
  EXPECT_EQ(m.moved, 12 * MB);
  m = count(Collective::gather,
            [&](Group& g, Rig& rig) { g.gather(g.rank() == 2 ? whole(rig) : Tensor(), block(rig), 2, *rig.stream); });
  EXPECT_EQ(m.ideal, 3 * MB);
  EXPECT_EQ(m.moved, 3 * MB);
  m = count(Collective::scatter,
            [&](Group& g, Rig& rig) { g.scatter(block(rig), g.rank() == 2 ? whole(rig) : Tensor(), 2, *rig.stream); });
  EXPECT_EQ(m.ideal, 3 * MB);
  EXPECT_EQ(m.moved, 3 * MB);
  m = count(Collective::broadcast, [&](Group& g, Rig& rig) { g.broadcast(block(rig), 1, *rig.stream); });
  EXPECT_EQ(m.ideal, 3 * MB);
  EXPECT_EQ(m.moved, 3 * MB);
  m = count(Collective::reduce, [&](Group& g, Rig& rig) {
    g.reduce(rig.device->empty(DType::i32, {1 << 18}), ReduceOp::sum, 1, *rig.stream);
  });
  EXPECT_EQ(m.ideal, 3 * MB);
  EXPECT_EQ(m.moved, 3 * MB);
}

TEST(Traffic, ExchangedRowsCountWhereTheyGoToOthers) {
  // Rank r sends 10 * r + q rows of 12 bytes to rank q.
  const Moved m = count(Collective::all_to_all, [](Group& g, Rig& rig) {
    std::vector<std::int64_t> send, recv;
    std::int64_t out = 0, in = 0;
    for (int q = 0; q < 4; ++q) {
      send.push_back(10 * g.rank() + q);
      recv.push_back(10 * q + g.rank());
      out += send.back();
      in += recv.back();
    }
    g.all_to_all(rig.device->empty(DType::f32, {in, 3}), recv, rig.device->empty(DType::f32, {out, 3}), send,
                 *rig.stream);
  });
  // All rows, 4 * (0 + 10 + 20 + 30) + 4 * (0 + 1 + 2 + 3) = 264, but for 0, 11, 22 and 33.
  EXPECT_EQ(m.ideal, (264u - 66u) * 12);
  EXPECT_EQ(m.moved, (264u - 66u) * 12);
}

TEST(Traffic, MessagesCountOnce) {
  const Moved m = count(Collective::send, [](Group& g, Rig& rig) {
    const Tensor t = rig.device->empty(DType::u8, {1000000});
    if (g.rank() == 1) {
      g.send(t, 3, *rig.stream);
    } else if (g.rank() == 3) {
      g.recv(t, 1, *rig.stream);
    }
  });
  EXPECT_EQ(m.calls, 1u);
  EXPECT_EQ(m.ideal, 1000000u);
  EXPECT_EQ(m.moved, 1000000u);
}

}  // namespace
}  // namespace orthant::test::traffic_test
