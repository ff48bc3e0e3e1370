// The local communicator against the conformance suite, with ranks as threads and as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "parallel/local/thread_world.h"
#include "tests/comm/conformance.h"
#include "tests/comm/many_groups.h"
#include "tests/comm/neighbours.h"
#include "tests/comm/processes.h"
#include "tests/support/error_of.h"

namespace orthant::test::local_test {
namespace {

// Staging of one page, so that small tensors need several chunks.
ThreadWorldOptions small_staging() {
  ThreadWorldOptions options;
  options.segment.stage_bytes = options.segment.mailbox_bytes = 4096;
  return options;
}

class ThreadWorld : public testing::TestWithParam<int> {};

TEST_P(ThreadWorld, ConformsWithSmallStaging) {
  run_threads(
      GetParam(),
      [](Communicator& world) {
        Conformance(world).run({0, 1, 7, 1000, 5003});
      },
      small_staging());
}

TEST_P(ThreadWorld, ConformsWithUsualStaging) {
  run_threads(GetParam(), [](Communicator& world) { Conformance(world).run({3001}); });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ThreadWorld, testing::Values(1, 2, 3, 4, 8));

// Through slots, and by reading each other's memory: whole calls, or those of more than a page.
TEST(Local, ConformsWithProcesses) {
  for (const std::size_t direct_bytes : {SIZE_MAX, std::size_t{0}, std::size_t{4096}}) {
    SCOPED_TRACE(direct_bytes);
    SegmentOptions options = small_staging().segment;
    options.direct_bytes = direct_bytes;
    for (const Ended& rank : run_processes(
             4,
             [](Communicator& world) {
               Conformance(world).run({0, 5, 1000, 5003});
             },
             60, options)) {
      EXPECT_EQ(rank.code, 0) << rank.message;
    }
  }
}

// The calls of a process that can read the others until one of them forbids it: that call too brings all data, on the
// ranks that could not read and on the one that could.
void exchange_until_forbidden(Communicator& world) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  if (syscall(SYS_capset, &header, none) != 0) {  // root reads all else
    fail("capset: {}", std::strerror(errno));
  }
  Rig rig;
  const auto everyone = {0, 1, 2};
  const auto exchanged = world.split("exchanged", everyone), gathered = world.split("gathered", everyone);
  exchanged->barrier(*rig.stream);  // all have dropped their privileges
  constexpr std::int64_t n = 100'000;
  const auto value = [](int round, int from, int to) { return 100 * round + 10 * from + to; };
  const auto of_everyone = [&](auto&& of) {
    std::vector<std::int32_t> all;
    for (const int member : everyone) {
      all.insert(all.end(), n, of(member));
    }
    return all;
  };
  for (int round = 0; round < 4; ++round) {
    if (round == 1 && world.rank() == 1 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
      fail("prctl: {}", std::strerror(errno));
    }
    const Tensor out = rig.device->empty(DType::i32, {3 * n});
    const Tensor in =
        rig.tensor_of(DType::i32, {3 * n}, of_everyone([&](int to) { return value(round, world.rank(), to); }));
    const std::vector<std::int64_t> rows(3, n);
    exchanged->all_to_all(out, rows, in, rows, *rig.stream);
    require(rig.values<std::int32_t>(out) == of_everyone([&](int from) { return value(round, from, world.rank()); }),
            "all_to_all {} is wrong", round);
    gathered->all_gather(out, in.rows(0, n), *rig.stream);
    require(rig.values<std::int32_t>(out) == of_everyone([&](int from) { return value(round, from, 0); }),
            "all_gather {} is wrong", round);
  }
}

TEST(Local, GoesOnInSlotsWhereReadingIsForbiddenLater) {
  for (const Ended& rank : run_processes(3, exchange_until_forbidden)) {
    EXPECT_EQ(rank.code, 0) << rank.message;
  }
}

TEST(Local, LargeTensorsInSeveralDefaultChunks) {
  run_threads(3, [](Communicator& world) { Conformance(world).run({70001}); });
}

TEST(Local, SumsHaveTheSameBitsInAnyChunking) {
  std::vector<std::vector<float>> results;
  for (const std::size_t stage : {4096, 12288, 262144}) {
    ThreadWorldOptions options;
    options.segment.stage_bytes = stage;
    run_threads(
        4,
        [&](Communicator& world) {
          Rig rig;
          std::vector<float> v(50000);
          for (std::size_t i = 0; i < v.size(); ++i) {
            v[i] = static_cast<float>(input_value(1, world.rank(), static_cast<std::int64_t>(i)));
          }
          const Tensor t = rig.tensor_of(DType::f32, {50000}, v);
          world.split("all", {0, 1, 2, 3})->all_reduce(t, ReduceOp::sum, *rig.stream);
          if (world.rank() == 2) {
            results.push_back(rig.values<float>(t));
          }
        },
        options);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// The root of one call may still be reading when the others are two rounds into the next call, of another root.
TEST(Local, RootedCallsBackToBackWithChangingRoots) {
  run_threads(
      4,
      [](Communicator& world) {
        Rig rig;
        const auto group = world.split("all", {0, 1, 2, 3});
        constexpr std::int64_t n = 6000;  // six chunks
        const Tensor out = rig.device->empty(DType::i32, {4 * n});
        for (int call = 0; call < 400; ++call) {
          const std::vector<std::int32_t> own(n, 10 * call + world.rank());
          const Tensor t = rig.tensor_of(DType::i32, {n}, own);
          const bool root = call % 4 == world.rank();
          if (call % 3 == 0) {
            group->reduce(t, ReduceOp::max, call % 4, *rig.stream);
            require(!root || rig.values<std::int32_t>(t) == std::vector<std::int32_t>(n, 10 * call + 3),
                    "reduce {} is wrong", call);
          } else {
            group->gather(out, t, call % 4, *rig.stream);
            const std::vector<std::int32_t> all = rig.values<std::int32_t>(out);
            for (std::size_t i = 0; root && i < all.size(); ++i) {
              require(all[i] == 10 * call + static_cast<std::int32_t>(i / n), "gather {} is wrong at {}: {}", call, i,
                      all[i]);
            }
          }
        }
      },
      small_staging());
}

TEST(Local, MaxAndMinPropagateNan) {
  run_threads(3, [](Communicator& world) {
    Rig rig;
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const auto r = static_cast<float>(world.rank());
      const Tensor t = rig.tensor_of<float>(
          DType::f32, {3}, {world.rank() == 0 ? nan : r, world.rank() == 1 ? nan : r, world.rank() == 2 ? nan : r});
      world.split("all", {0, 1, 2})->all_reduce(t, op, *rig.stream);
      for (const float x : rig.values<float>(t)) {
        require(std::isnan(x), "expected NaN, found {}", x);
      }
    }
  });
}

// Five axes on 16 ranks. What groups take is what is written to them, not what they might need.
TEST(Local, ManyGroupsOnManyRanks) {
  const auto segment = LocalSegment::create(16);
  EXPECT_EQ(segment->options().channels, 4096);
  std::size_t after_small = 0;
  std::vector<std::jthread> ranks;
  std::vector<std::string> failures(16);
  for (int rank = 0; rank < 16; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto world = make_local_communicator(segment, rank, 60);
        use_many_groups(*world, 100, 300);
        Rig rig;
        world->split("done", everyone(*world))->barrier(*rig.stream);
        if (rank == 0) {
          after_small = segment->resident_bytes();
        }
        use_many_groups(*world, 5, 100000);
      } catch (const std::exception& error) {
        failures[rank] = error.what();
        segment->mark_failed(rank, error.what());
      }
    });
  }
  ranks.clear();
  EXPECT_THAT(failures, testing::Each(""));
  EXPECT_GT(after_small, 1u << 20);
  EXPECT_LT(after_small, 100u * 16 * (16 << 10));  // four pages a group and rank
  EXPECT_LT(segment->resident_bytes() - after_small, 5u * 16 * (1 << 20));
}

TEST(Local, ManyChannelsThenAClearError) {
  ThreadWorldOptions options = small_staging();
  options.segment.channels = 300;
  try {
    run_threads(
        2,
        [](Communicator& world) {
          Rig rig;
          for (int i = 0;; ++i) {
            const Tensor t = rig.tensor_of<std::int32_t>(DType::i32, {1}, {world.rank() + i});
            world.split("channel", {0, 1})->all_reduce(t, ReduceOp::sum, *rig.stream);
            require(rig.values<std::int32_t>(t)[0] == 2 * i + 1, "wrong sum in channel {}", i);
            require(i < 300, "channel {} should not exist", i);
          }
        },
        options);
    FAIL() << "channels should run out";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("split of group 'channel': the world's 300 channels are used up"));
  }
}

TEST(Segment, AttachRefusesOtherFiles) {
  const int fd = memfd_create("other", 0);
  EXPECT_THROW(LocalSegment::attach(fd), Error);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  EXPECT_THROW(LocalSegment::attach(fd), Error);
  close(fd);
  errno = 0;  // the reason below is of the call that fails, not what an earlier one left
  EXPECT_THAT(test::error_of([&] { LocalSegment::attach(fd); }), testing::HasSubstr("Bad file descriptor"));
  EXPECT_THROW(LocalSegment::create(0), Error);
  EXPECT_THROW(LocalSegment::create(LocalSegment::max_world + 1), Error);
}

TEST(Segment, TheLargestWorldFitsTheAddressSpace) {
  const auto segment = LocalSegment::create(LocalSegment::max_world);
  std::byte* last = segment->area(segment->options().channels - 1, LocalSegment::max_world - 1);
  last[segment->area_bytes() - 1] = std::byte{1};
  EXPECT_EQ(last[0], std::byte{0});
}

}  // namespace
}  // namespace orthant::test::local_test
