// Which collectives a step makes, in which order: the same on every rank, and no more than are needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "apps/check/recording_communicator.h"
#include "parallel/local/thread_world.h"
#include "tests/zero/zero_layouts.h"

namespace orthant::zero_test::collectives_test {
namespace {

using test::experiment;
using test::Overrides;
using test::TestRank;
using testing::ElementsAre;

TEST(Collectives, AreCalledInOneOrder) {
  const std::vector<std::string> layouts = {zero(1, 4) + with_expert(2), zero(2, 4) + with_expert(2),
                                            zero(3, 4) + with_expert(2),
                                            zero(3, 4, "shard_ranks = 2\nwhole_below = 1200\n")};
  for (const std::string& layout : layouts) {
    for (const Overrides& overrides :
         {Overrides{"moe.every=2", "model.layers=3"}, Overrides{"batch.micro_batch=1", "moe.capacity_factor=1.0"},
          Overrides{"model.tie_embeddings=true"}}) {
      const Config config = experiment(overrides, layout);
      CallRecord record;
      run_threads(4, [&](Communicator& communicator) {
        RecordingCommunicator recording(communicator, record);
        TestRank rank(config, recording);
        rank.trainer().validate();
        rank.trainer().step(0);
        rank.trainer().step(1);
        rank.trainer().validate();
        rank.trainer().step(2);
      });
      for (const auto& [group, by_rank] : record.calls) {
        for (const auto& [rank, calls] : by_rank) {
          EXPECT_EQ(calls, by_rank.begin()->second) << layout << group << ": rank " << rank;
        }
        EXPECT_EQ(by_rank.size(), record.members.at(group)) << layout << group << ": some member never called";
      }
    }
  }
}

// The sums and gathers of rank 0 in the first two steps, by layer: embedding, blocks, head.
std::array<std::vector<std::string>, 2> first_steps(const std::string& plugins, const Overrides& more = {}) {
  Overrides overrides = {"moe.experts=0", "model.d_ff=20"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const Config config = experiment(overrides, plugins);
  CallRecord record;
  std::array<std::size_t, 2> before{};
  std::string sum;
  std::map<std::int64_t, std::string> layers;
  run_threads(2, [&](Communicator& communicator) {
    RecordingCommunicator recording(communicator, record);
    TestRank rank(config, recording);
    for (int step = 0; step < 2; ++step) {
      rank.trainer().world().barrier(rank.stream());
      if (communicator.rank() == 0) {
        const std::lock_guard lock(record.mutex);
        for (const auto& [group, calls] : record.calls) {
          if (group.starts_with("sum of gradients")) {
            sum = group;
            before[step] = calls.at(0).size();
          }
        }
      }
      rank.trainer().world().barrier(rank.stream());
      rank.trainer().step(step);
    }
    if (communicator.rank() == 0) {
      for (const auto& group : rank.trainer().parameters().groups()) {
        layers[group->owned_elements] = group->layer == 0 ? "embedding" : group->layer == 3 ? "head" : "block";
      }
    }
  });
  std::array<std::vector<std::string>, 2> found;
  const std::vector<std::string>& all = record.calls.at(sum).at(0);
  for (std::size_t i = before[0]; i < all.size(); ++i) {
    const std::string call = all[i].substr(0, all[i].find(' '));
    found[i < before[1] ? 0 : 1].push_back((call == "all_gather"       ? "gather "
                                            : call == "reduce_scatter" ? "sum "
                                                                       : call + " ") +
                                           layers.at(std::stoll(all[i].substr(all[i].rfind(' ')))));
  }
  return found;
}

std::vector<std::string> second_step(const std::string& plugins, const Overrides& more = {}) {
  return first_steps(plugins, more)[1];
}

// The last layer's weights stay from its forward to its backward pass.
TEST(Collectives, WeightsAreGatheredOnceEachWay) {
  EXPECT_THAT(second_step(zero(3, 2, "whole_below = 0\nprefetch = false\n")),
              ElementsAre("gather embedding", "gather block", "gather block", "gather head",     // forward
                          "sum head", "gather block", "sum block", "gather block", "sum block",  //
                          "gather embedding", "sum embedding"));
}

// Before the order of the layers is known nothing is gathered ahead, but neither twice.
TEST(Collectives, TheFirstStepGathersNoMore) {
  const std::string ahead = zero(3, 2), demand = zero(3, 2, "whole_below = 0\nprefetch = false\n");
  EXPECT_EQ(first_steps(ahead)[0], second_step(demand));
  EXPECT_EQ(first_steps(demand)[0], second_step(demand));
  EXPECT_EQ(first_steps(ahead + "layered = true\n", {"batch.micro_batch=1"})[0], second_step(demand));
}

TEST(Collectives, TheNextLayerIsGatheredAhead) {
  EXPECT_THAT(second_step(zero(3, 2)),
              ElementsAre("gather embedding", "gather block", "gather block", "gather head", "gather block",  // forward
                          "sum head", "gather block", "sum block", "gather embedding", "sum block", "sum embedding"));
}

TEST(Collectives, WholeWeightsAreGatheredAfterTheUpdate) {
  for (int stage : {1, 2}) {
    EXPECT_THAT(second_step(zero(stage, 2)),
                ElementsAre("sum head", "sum block", "sum block", "sum embedding",  //
                            "gather embedding", "gather block", "gather block", "gather head"));
  }
}

// A gradient that does not outlive its micro-batch is summed for each.
TEST(Collectives, SumsOfMicroBatches) {
  const Overrides two = {"batch.micro_batch=2"};
  EXPECT_EQ(second_step(zero(1, 2), two).size(), 4u + 4u);
  EXPECT_EQ(second_step(zero(2, 2), two).size(), 2 * 4u + 4u);
  EXPECT_EQ(second_step(zero(3, 2), two).size(), 2 * (4u + 7u) - 1u);  // the embedding's weights stay between them
}

// Layer by layer, all micro-batches are as one.
TEST(Collectives, LayeredMicroBatchesAreGatheredAndSummedOnce) {
  for (const char* prefetch : {"true", "false"}) {
    const std::string table = zero(3, 2, fmt::format("whole_below = 0\nprefetch = {}\n", prefetch));
    EXPECT_EQ(second_step(table + "layered = true\n", {"batch.micro_batch=1"}), second_step(table));
  }
  EXPECT_EQ(second_step(zero(2, 2, "layered = true\n"), {"batch.micro_batch=1"}), second_step(zero(2, 2)));
}

}  // namespace
}  // namespace orthant::zero_test::collectives_test
