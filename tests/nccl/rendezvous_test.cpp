// The rendezvous where all goes well: ranks as threads.
#include "plugins/nccl/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <set>

#include "tests/nccl/rendezvous_ranks.h"

namespace orthant::nccl::test::rendezvous_test {
namespace {

using testing::Each;
using testing::HasSubstr;

TEST(Rendezvous, EveryoneGetsEveryonesPart) {
  for (const std::string& address : {fresh_name(), free_port()}) {
    EXPECT_THAT(
        run(5,
            [&](int rank) {
              Rendezvous here(config(address, rank, 5));
              here.start(ignore());
              for (int i = 0; i < 20; ++i) {
                const std::string own(rank * 1000 + i, static_cast<char>('a' + rank));
                const auto all = here.all_gather(fmt::format("meeting {}", i), own);
                for (int r = 0; r < 5; ++r) {
                  require(all.at(r) == std::string(static_cast<std::size_t>(r * 1000 + i), static_cast<char>('a' + r)),
                          "rank {} got another part from rank {}", rank, r);
                }
              }
            }),
        Each("no error"))
        << address;
  }
}

TEST(Rendezvous, NotesReachTheirRankInOrderWithTheSender) {
  const std::string address = fresh_name();
  std::mutex mutex;
  std::vector<std::vector<std::string>> heard(3);
  EXPECT_THAT(run(3,
                  [&](int rank) {
                    Rendezvous here(config(address, rank, 3));
                    auto handlers = ignore();
                    handlers.note = [&, rank](int from, const std::string& text) {
                      const std::lock_guard lock(mutex);
                      heard[rank].push_back(fmt::format("{} from {}", text, from));
                    };
                    here.start(handlers);
                    if (rank == 1) {
                      here.post(2, "one");
                      here.post(2, "two");
                      here.post(-1, "all");
                    }
                    require(soon([&] {
                              const std::lock_guard lock(mutex);
                              return heard[0].size() == 1 && heard[2].size() == 3;
                            }),
                            "notes are missing");
                    here.all_gather("end", "");
                  }),
              Each("no error"));
  EXPECT_THAT(heard[0], testing::ElementsAre("all from 1"));
  EXPECT_THAT(heard[1], testing::IsEmpty());
  EXPECT_THAT(heard[2], testing::ElementsAre("one from 1", "two from 1", "all from 1"));
}

TEST(Rendezvous, RankZeroMayComeLate) {
  const std::string address = free_port();
  EXPECT_THAT(run(3,
                  [&](int rank) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 300 : 0));
                    Rendezvous here(config(address, rank, 3));
                    here.start(ignore());
                    here.all_gather("end", "");
                  }),
              Each("no error"));
}

TEST(Rendezvous, LeavingIsTold) {
  const std::string address = fresh_name();
  EXPECT_THAT(run(3,
                  [&](int rank) {
                    std::mutex mutex;
                    std::set<int> left;
                    Rendezvous here(config(address, rank, 3));
                    auto handlers = ignore();
                    handlers.left = [&](int r) {
                      const std::lock_guard lock(mutex);
                      left.insert(r);
                    };
                    here.start(handlers);
                    if (rank == 0) {
                      require(soon([&] {
                                const std::lock_guard lock(mutex);
                                return left == std::set<int>{1, 2};
                              }),
                              "not told");
                      require(!here.failure(), "leaving is no failure");
                    }
                  }),
              Each("no error"));
}

TEST(Rendezvous, BadAddressesAreRefused) {
  for (const char* address : {"", "host", "host:", ":1", "host:port", "host:123456", "unix:@", "unix:name"}) {
    EXPECT_THAT(error_of([&] { listen_at(address); }), HasSubstr("expected")) << address;
  }
  EXPECT_THAT(error_of([&] { listen_at("unix:@" + std::string(200, 'x')); }), HasSubstr("1 to 107 characters"));
  EXPECT_THAT(error_of([&] { connect_to("no-such-host.invalid:1"); }), HasSubstr("cannot resolve"));
}

}  // namespace
}  // namespace orthant::nccl::test::rendezvous_test
