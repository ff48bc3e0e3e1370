// Neighbours of a ring that send large tensors to each other at once, from side streams, while their main streams
// receive and a third stream sums: the traffic of a pipeline. Any hidden order between channels would deadlock it.
//
// Used by neighbours_test.cpp (ranks as threads and as processes) and by mpi_conformance.cpp, so it throws Error
// instead of using a test framework.
#pragma once

#include <orthant/group.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/comm/rig.h"

namespace orthant::test {

inline std::vector<int> everyone(const Communicator& world) {
  std::vector<int> all(world.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// edge: a group of two for each edge of the ring. ring: one group of everyone for each direction, on which a rank's
// side stream sends while its main stream receives.
enum class NeighbourGroups { edge, ring };

class Neighbours {
 public:
  Neighbours(Communicator& world, NeighbourGroups groups, const std::string& device = "cpu")
      : world_(world), p_(world.size()), me_(world.rank()), rig_(device) {
    to_next_ = groups == NeighbourGroups::edge ? edges("to next") : ring("to next");
    to_last_ = groups == NeighbourGroups::edge ? edges("to last") : ring("to last");
    sums_ = world.split("sums", everyone(world));
    for (std::unique_ptr<Stream>& side : sides_) {
      side = rig_.device->make_side_stream();
    }
  }

  // For each size, `repeats` times: a message of so many bytes to either neighbour, each direction on groups and side
  // streams of its own, and sums of small and of large tensors meanwhile.
  void run(const std::vector<std::int64_t>& sizes, int repeats) {
    for (const std::int64_t bytes : sizes) {
      for (int i = 0; i < repeats; ++i) {
        exchange(bytes);
      }
    }
  }

 private:
  enum Direction { next, last };

  // One group of two ranks for every edge of the ring. A rank has two edges, so the edges take two splits, and an odd
  // ring a third; [r] is the group of the edge between ranks r and r + 1, where this rank is one of them.
  std::vector<std::shared_ptr<Group>> edges(const std::string& name) {
    std::vector<std::shared_ptr<Group>> found(p_);
    for (int first = 0; first < (p_ % 2 == 0 ? 2 : 3); ++first) {
      std::vector<int> members{me_};
      int mine = -1;
      for (int r = 0; r < p_; ++r) {
        const bool closing = p_ % 2 == 1 && r == p_ - 1;  // of an odd ring: in no other edge's split
        const bool here = first == 2 ? closing : !closing && r % 2 == first;
        if (here && (r == me_ || (r + 1) % p_ == me_)) {
          members = {r, (r + 1) % p_};
          mine = r;
        }
      }
      std::shared_ptr<Group> group = world_.split(name, members);
      if (mine >= 0) {
        found[mine] = std::move(group);
      }
    }
    return found;
  }

  std::vector<std::shared_ptr<Group>> ring(const std::string& name) {
    return std::vector<std::shared_ptr<Group>>(p_, world_.split(name, everyone(world_)));
  }

  // What world rank `rank` sends in direction `direction` in message `message`.
  static std::vector<std::uint8_t> payload(std::int64_t bytes, int rank, Direction direction, int message) {
    std::vector<std::uint8_t> v(bytes);
    const auto start = static_cast<std::uint32_t>(1 + rank * 7919 + direction * 104729 + message * 1299709);
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] = static_cast<std::uint8_t>(((static_cast<std::uint32_t>(i) + start) * 2654435761u) >> 24);
    }
    return v;
  }

  void exchange(std::int64_t bytes) {
    const int message = messages_++;
    const int next_rank = (me_ + 1) % p_, last_rank = (me_ + p_ - 1) % p_;
    const auto outgoing = [&](Direction d) {
      return rig_.tensor_of(DType::u8, {bytes}, payload(bytes, me_, d, message));
    };
    send(*to_next_[me_], outgoing(next), next_rank, *sides_[0]);
    send(*to_last_[last_rank], outgoing(last), last_rank, *sides_[1]);

    const std::int64_t n = message % 2 == 0 ? 1000 : 150000;
    const Tensor sum = rig_.tensor_of(DType::i32, {n}, std::vector<std::int32_t>(n, me_ + 1));
    sums_->all_reduce(sum, ReduceOp::sum, *sides_[2]);

    // Half of the ranks receive first what their neighbour may have sent last.
    for (int i = 0; i < 2; ++i) {
      const bool from_last = (i + me_ + message) % 2 == 0;
      const Tensor in = rig_.device->empty(DType::u8, {bytes});
      const int sender = from_last ? last_rank : next_rank;
      const std::shared_ptr<Group>& group = from_last ? to_next_[last_rank] : to_last_[me_];
      group->recv(in, within(*group, sender), *rig_.stream);
      require(rig_.values<std::uint8_t>(in) == payload(bytes, sender, from_last ? next : last, message),
              "rank {} received other bytes than rank {} sent it in message {} of {} bytes", me_, sender, message,
              bytes);
    }
    for (std::unique_ptr<Stream>& side : sides_) {
      side->synchronize();
    }
    const std::vector<std::int32_t> sums = rig_.values<std::int32_t>(sum);
    require(sums == std::vector<std::int32_t>(sums.size(), p_ * (p_ + 1) / 2), "a sum of {} elements is wrong", n);
  }

  void send(Group& group, const Tensor& t, int world_rank, Stream& side) {
    side.wait(rig_.stream->record());
    group.send(t, within(group, world_rank), side);
  }
  static int within(const Group& group, int world_rank) {
    const std::vector<int>& members = group.members();
    return static_cast<int>(std::find(members.begin(), members.end(), world_rank) - members.begin());
  }

  Communicator& world_;
  int p_, me_;
  Rig rig_;
  std::vector<std::shared_ptr<Group>> to_next_, to_last_;
  std::unique_ptr<Group> sums_;
  std::unique_ptr<Stream> sides_[3];  // after the groups that they use: they end first
  int messages_ = 0;
};

// Two ranks. Rank 0 sends a large tensor on a side stream and receives on its main stream, both a second before rank 1
// does. The processor time that this took the calling process, in seconds; a busy machine cannot make it more.
inline double seconds_used_by_waiting(Communicator& world) {
  Rig rig;
  const auto there = world.split("there", {0, 1}), back = world.split("back", {0, 1});
  const auto side = rig.device->make_side_stream();
  const Tensor large = rig.device->empty(DType::u8, {1 << 20}), byte = rig.device->empty(DType::u8, {1});
  rig.stream->fill(large, 1);
  rig.stream->fill(byte, 1);
  there->barrier(*rig.stream);
  const auto used = [] {
    rusage r{};
    getrusage(RUSAGE_SELF, &r);
    return static_cast<double>(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
  };
  const double before = used();
  if (world.rank() == 0) {
    there->send(large, 1, *side);
    back->recv(byte, 1, *rig.stream);
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    there->recv(large, 0, *rig.stream);
    back->send(byte, 0, *rig.stream);
  }
  side->synchronize();
  return used() - before;
}

}  // namespace orthant::test
