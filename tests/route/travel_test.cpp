// What rows that travel move, against what ranks have moved; and placements of experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <filesystem>
#include <fstream>

#include "apps/route/exchange_trial.h"
#include "apps/route/travel.h"
#include "core/dry_run/planning.h"
#include "parallel/local/local_communicator.h"
#include "parallel/local/traffic.h"
#include "tests/route/recorded.h"
#include "tests/support/error_of.h"

namespace orthant::travel_test {
namespace {

namespace fs = std::filesystem;
using route_test::Folder;
using route_test::record;
using route_test::table;
using test::experiment;
using test::joined;
using test::Overrides;
using testing::HasSubstr;

struct Moved {
  std::int64_t inside = 0, between = 0;
};

// What all ranks send in all-to-alls of a first step: all of one level inside, the legs of two levels apart.
Moved moved_by(const Config& config) {
  const int world = check_layout(config);
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < world; ++rank) {
    plans.push_back(plan_rank(config, rank));
  }
  const auto segment = LocalSegment::create(world);
  std::barrier everyone(world);
  Moved moved;
  const auto add = [&](std::int64_t sign) {
    for (const RankPlan& plan : plans) {
      for (std::size_t group = 0; group < plan.step.groups.size(); ++group) {
        const auto traffic = traffic_of(*segment, static_cast<int>(group), plan.rank);
        const auto bytes =
            sign * static_cast<std::int64_t>(traffic[static_cast<std::size_t>(Collective::all_to_all)].ideal_bytes);
        (plan.step.groups[group].name == "expert across" ? moved.between : moved.inside) += bytes;
      }
    }
  };
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto communicator = make_local_communicator(segment, rank, 60);
      test::TestRank one(config, *communicator);
      one.stream().synchronize();
      everyone.arrive_and_wait();
      if (rank == 0) {
        add(-1);
      }
      everyone.arrive_and_wait();
      one.trainer().step(0);
      one.stream().synchronize();
      everyone.arrive_and_wait();
      if (rank == 0) {
        add(1);
      }
      everyone.arrive_and_wait();
    });
  }
  ranks.clear();
  return moved;
}

Moved sum_of(const std::vector<Travel>& layers) {
  Moved sum;
  for (const Travel& travel : layers) {
    sum.inside += travel.bytes_inside;
    sum.between += travel.bytes_between;
  }
  return sum;
}

struct Way {
  Overrides overrides;
  int ranks, expert_ranks, node_ranks;  // node_ranks > 0: two levels
  std::size_t batches;
  bool recomputed;
  std::string keys = "";  // of the exchange, beside those of two levels
  bool by_hand = true;    // travel_of knows it too
};

TEST(Travel, IsTheBytesThatRanksMove) {
  const Overrides model = {"moe.experts=8", "moe.capacity_factor=1.0"};
  const std::vector<Way> ways = {
      {{}, 2, 2, 0, 1, false},
      {{}, 4, 4, 0, 1, false},
      {{}, 4, 2, 0, 1, false},
      {{"batch.micro_batch=1"}, 4, 4, 0, 2, false},
      {{"batch.micro_batch=1", R"(memory.recompute="full")"}, 4, 4, 0, 2, true},
      {{R"(run.dtype="bf16")"}, 4, 4, 0, 1, false},
      {{}, 4, 4, 2, 1, false},
      {{"batch.sequences=16"}, 8, 8, 2, 1, false},
      {{R"(moe.router="expert_choice")", "moe.top_k=0"}, 4, 2, 0, 1, false},
      {{}, 4, 4, 0, 1, false, "chunks = 2\n"},
      {{}, 4, 4, 2, 1, false, "chunks = 2\n"},
      {{}, 2, 2, 0, 1, false, "padded = true\n", false},
      {{}, 4, 4, 2, 1, false, "padded = true\nchunks = 2\n", false},
      {{"batch.micro_batch=1", R"(memory.recompute="full")", R"(run.dtype="bf16")"},
       4,
       4,
       0,
       2,
       true,
       "padded = true\n",
       false},
  };
  for (const Way& way : ways) {
    const Overrides overrides = joined(model, way.overrides);
    const std::string dispatch =
        way.node_ranks > 0 ? fmt::format("dispatch = \"hierarchical\"\nnode_ranks = {}\n", way.node_ranks) : "";
    const Config config =
        experiment(overrides, table("data", way.ranks) + table("expert", way.expert_ranks, dispatch + way.keys));
    const std::string what =
        testing::PrintToString(way.overrides) + fmt::format(" {} {} {}", way.ranks, way.node_ranks, way.keys);
    // Recorded on one rank.
    const Folder folder("bytes");
    const bool bf16 = config.settings.run.dtype == ComputeType::bf16;
    record(bf16 ? config : experiment(overrides), folder.path());
    const RecordedStep step = read_recording(folder.path(), 1, config.settings);
    const ExpertLayout layout{.ranks = way.ranks,
                              .expert_ranks = way.expert_ranks,
                              .node_ranks = way.node_ranks,
                              .two_levels = way.node_ranks > 0,
                              .place_of_expert = {},
                              .recomputed = std::vector<bool>(way.batches, way.recomputed),
                              .width = config.settings.model.d_model,
                              .element_bytes = bf16 ? 2 : 4};
    const Moved moved = moved_by(config);
    EXPECT_GT(moved.inside + moved.between, 0) << what;
    const std::vector<Decisions> layers = replay(step, config.settings);
    ASSERT_TRUE(ExchangeTrial::possible(config, layout)) << what;
    const ExchangeTrial trial(config, layout);
    const std::vector<Travel> tried = trial.travels(layers);
    EXPECT_EQ(sum_of(tried).inside, moved.inside) << what;
    EXPECT_EQ(sum_of(tried).between, moved.between) << what;
    EXPECT_GT(trial.seconds(layers), 0) << what;
    if (way.by_hand) {
      std::vector<Travel> by_hand;
      for (const Decisions& layer : layers) {
        by_hand.push_back(travel_of(layer, layout));
        EXPECT_EQ(by_hand.back().rows, tried[by_hand.size() - 1].rows) << what;
      }
      EXPECT_EQ(sum_of(by_hand).inside, moved.inside) << what;
      EXPECT_EQ(sum_of(by_hand).between, moved.between) << what;
    }
  }
}

// Two tokens for each of two ranks, counted by hand.
TEST(Travel, FollowsThePlacement) {
  Decisions made{.layer = 1,
                 .top_k = 1,
                 .expert = {0, 1, 2, 0},
                 .kept = {1, 1, 1, 0},
                 .load = {2, 1, 1, 0},
                 .computed = {1, 1, 1, 0}};
  ExpertLayout layout{
      .ranks = 2, .expert_ranks = 2, .place_of_expert = {}, .recomputed = {false}, .width = 10, .element_bytes = 4};
  const std::int64_t row = 4 * 40 + 8, counts = 2 * 2 * 4;
  EXPECT_EQ(travel_of(made, layout).bytes_inside, counts) << "each rank's tokens stay";
  EXPECT_EQ(travel_of(made, layout).rows_of_ranks(), (std::vector<std::int64_t>{2, 1}));
  layout.place_of_expert = {1, 0, 0, 1};
  EXPECT_EQ(travel_of(made, layout).bytes_inside, counts + 2 * row);
  EXPECT_EQ(travel_of(made, layout).rows_of_ranks(), (std::vector<std::int64_t>{2, 1}));
  layout.node_ranks = 1;
  EXPECT_EQ(travel_of(made, layout).bytes_between, counts + 2 * row);
  EXPECT_EQ(travel_of(made, layout).bytes_inside, 0);
  layout.ranks = 3;
  EXPECT_THAT(test::error_of([&] { travel_of(made, layout); }), HasSubstr("3 ranks cannot be shared out"));
}

TEST(Travel, PlacementsAreReadOrRefused) {
  const Folder folder("placement");
  const fs::path file = folder.path() / "p";
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_placement(file, 4, 2);
  };
  EXPECT_EQ(read("3 0\n1 2\n"), (std::vector<int>{0, 1, 1, 0}));
  EXPECT_THAT(test::error_of([&] { read("0 1\n1 2 3\n"); }), HasSubstr("line 2: '1'"));
  EXPECT_THAT(test::error_of([&] { read("0 1\n2\n"); }), HasSubstr("expert 3 is on no line"));
  EXPECT_THAT(test::error_of([&] { read("0 1\n2\n3\n"); }), HasSubstr("line 3"));
  EXPECT_THAT(test::error_of([&] { read("0 x\n"); }), HasSubstr("'x'"));
  EXPECT_THAT(test::error_of([&] { read_placement(folder.path() / "none", 4, 2); }), HasSubstr("cannot be read"));
  EXPECT_THAT(test::error_of([&] { read_placement(folder.path(), 4, 2); }), HasSubstr("cannot be read"));
  EXPECT_EQ(read("0 1 2 3\n\n"), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_THAT(test::error_of([&] { read("0 1 2 3\n"); }), HasSubstr("it has 1 lines, and 2 ranks share"));
}

}  // namespace
}  // namespace orthant::travel_test
